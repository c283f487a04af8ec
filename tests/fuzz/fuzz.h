/* fuzz.h - what a fuzz target is: one function, fed with one input, that ends
 * the process where something does not hold. Called by libFuzzer, and by
 * replay_main.c for the inputs of the corpus. */
#ifndef CRIER_FUZZ_H
#define CRIER_FUZZ_H

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#endif
