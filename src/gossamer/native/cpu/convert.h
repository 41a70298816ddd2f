// bfloat16 to float32 and back.

[[maybe_unused]] static void widen(const Bf16* from, float* to, int64_t count) {
  int64_t i = 0;
  for (; i + WIDTH <= count; i += WIDTH) store<WIDTH>(to + i, load<WIDTH>(from + i));
  for (; i < count; i++) to[i] = from[i];
}

// To the nearest, ties to even, as torch does.
static void narrow(const float* from, Bf16* to, int64_t count) {
  for (int64_t i = 0; i < count; i++) {
    uint32_t bits;
    memcpy(&bits, from + i, 4);
    const uint32_t rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
    to[i].bits = uint16_t((bits & 0x7FFFFFFF) > 0x7F800000 ? 0x7FC0 : rounded);  // a NaN stays one
  }
}
