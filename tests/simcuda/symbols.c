// The table of exported symbols. The table uses only the addresses of the symbols, so this file declares the symbols without their
// parameters. No other file can have these declarations, because they contradict the real ones.
#include "symbols.h"

#define B(base)
#define S(base, symbol, since) extern void symbol(void);
#define F(base, since) extern void base(void);
#include "functions.def"
#undef F
#undef S

const struct symbol symbols[] = {
#define S(base, symbol, since) {#base, #symbol, (void *)symbol, since},
#define F(base, since) {#base, #base, (void *)base, since},
#include "functions.def"
#undef F
#undef S
};
const int symbol_count = sizeof symbols / sizeof *symbols;
