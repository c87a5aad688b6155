// CUDA's vector types, with the toolkit's alignment.
#ifndef FSDP_TRAIN_TESTS_EMULATED_INCLUDE_VECTOR_TYPES_H_
#define FSDP_TRAIN_TESTS_EMULATED_INCLUDE_VECTOR_TYPES_H_

struct uint3 {
  unsigned x, y, z;
};

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_size = 1, unsigned y_size = 1, unsigned z_size = 1)  // NOLINT: as CUDA.
      : x(x_size), y(y_size), z(z_size) {}
};

#define FSDP_VECTOR_TYPES(name, T)                           \
  struct alignas(2 * sizeof(T)) name##2 {                    \
    T x, y;                                                  \
  };                                                         \
  struct alignas(4 * sizeof(T)) name##4 {                    \
    T x, y, z, w;                                            \
  };                                                         \
  inline name##2 make_##name##2(T x, T y) { return {x, y}; } \
  inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
FSDP_VECTOR_TYPES(uchar, unsigned char)
FSDP_VECTOR_TYPES(short, short)
FSDP_VECTOR_TYPES(ushort, unsigned short)
FSDP_VECTOR_TYPES(int, int)
FSDP_VECTOR_TYPES(uint, unsigned)
FSDP_VECTOR_TYPES(float, float)
#undef FSDP_VECTOR_TYPES

struct alignas(16) double2 {
  double x, y;
};
struct alignas(16) longlong2 {
  long long x, y;  // NOLINT: as CUDA.
};

#endif  // FSDP_TRAIN_TESTS_EMULATED_INCLUDE_VECTOR_TYPES_H_
