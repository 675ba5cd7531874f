// The table of exported symbols, generated from functions.def.
#ifndef SIMCUDA_SYMBOLS_H
#define SIMCUDA_SYMBOLS_H

struct symbol { const char *base, *name; void *address; int since; };
extern const struct symbol symbols[];
extern const int symbol_count;

#endif
