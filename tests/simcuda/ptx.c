// Checks PTX text, and refuses text that no PTX compiler accepts. Outside of functions, the text has only directives. Inside
// functions, the text has only instructions and labels.
#include "module.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

// The instructions without a dot in their names.
static const char *const plain[] = {"ret", "exit", "bra", "call", "trap", "brkpt", "nop"};

static const char *skip(const char *at, int *line) {
    for (;;) {
        if (isspace((unsigned char)*at)) {
            *line += *at++ == '\n';
        } else if (at[0] == '/' && at[1] == '/') {
            while (*at && *at != '\n') at++;
        } else if (at[0] == '/' && at[1] == '*') {
            at += 2;
            while (*at && !(at[0] == '*' && at[1] == '/')) *line += *at++ == '\n';
            if (*at) at += 2;
        } else {
            return at;
        }
    }
}

static size_t word_length(const char *at) {
    size_t n = 0;
    while (isalnum((unsigned char)at[n]) || (at[n] && strchr("._$%@!", at[n]))) n++;
    return n;
}

static bool is_instruction(const char *word, size_t n) {
    if (memchr(word, '.', n)) return true;
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++) {
        if (strlen(plain[i]) == n && strncmp(word, plain[i], n) == 0) return true;
    }
    return false;
}

// Skips the rest of a statement. An instruction ends at a semicolon. A directive outside of functions ends at a semicolon, at a brace,
// or at the end of a line.
static const char *rest(const char *at, bool in_body, int *line) {
    int parentheses = 0;
    for (; *at; at++) {
        if (*at == '(') parentheses++;
        if (*at == ')') parentheses--;
        if (*at == ';') return at + 1;
        if (!parentheses && (*at == '{' || *at == '}') && !in_body) return at;
        if (!parentheses && *at == '\n' && !in_body) return at;
        *line += *at == '\n';
    }
    return at;
}

bool ptx_check(const char *text, char *log, size_t size) {
    int depth = 0, line = 1;
    for (const char *at = skip(text, &line); *at; at = skip(at, &line)) {
        if (*at == '{' || *at == '}') {
            depth += *at++ == '{' ? 1 : -1;
            continue;
        }
        if (*at == ';') { // the semicolon of a prototype that spans several lines
            at++;
            continue;
        }
        if (!depth && (*at == '(' || *at == ')' || *at == ',')) {
            at = rest(at, false, &line);
            continue;
        }
        size_t n = word_length(at);
        if (depth && at[n] == ':') {
            at += n + 1;
            continue;
        }
        const char *name = at;
        if (depth && *at == '@') { // a predicate
            name = skip(at + n, &line);
            n = word_length(name);
        }
        if (depth ? !is_instruction(name, n) : *at != '.') {
            snprintf(log, size, "ptxas application ptx input, line %d; fatal: syntax error near '%.*s'", line, (int)n, name);
            return false;
        }
        at = rest(name + n, depth > 0, &line);
    }
    if (depth) snprintf(log, size, "ptxas application ptx input, line %d; fatal: a brace is not closed", line);
    return depth == 0;
}
