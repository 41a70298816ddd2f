"""Products of bfloat16 weights as bits and kept values, by AMX and AVX-512 on a CPU."""
