// Between packed V:N:M and dense, both ways: for to_dense and for the backward of the product.
//
// One thread has one row and one group: two values. Floor: the packed bytes once, and for each value the dense line it
// lies in. Neighbouring threads have neighbouring groups, so that at small m a warp covers whole lines.
#include "vnm.cuh"

// dense (zero before) [rows][width], from the packed values.
extern "C" __global__ void __launch_bounds__(256) vnm_decode(Vnm w, Element* dense, i64 groups) {
  const i64 i = i64(blockIdx.x) * 256 + threadIdx.x;
  after_the_kernel_before();
  if (i >= w.rows * groups) return;
  const i64 row = i / groups, group = i % groups;
  i64 first, second;
  w.columns(row, group, &first, &second);
  const i64 pair = w.pair(row, group) * 2;
  if (first < w.width) dense[row * w.width + first] = w.values[pair];
  if (second < w.width) dense[row * w.width + second] = w.values[pair + 1];
}

// The packed values (zero before), from dense [rows][width]: what lies elsewhere is not read.
extern "C" __global__ void __launch_bounds__(256) vnm_sample(Vnm w, const Element* dense, i64 groups, Element* values) {
  const i64 i = i64(blockIdx.x) * 256 + threadIdx.x;
  after_the_kernel_before();
  if (i >= w.rows * groups) return;
  const i64 row = i / groups, group = i % groups;
  i64 first, second;
  w.columns(row, group, &first, &second);
  const i64 pair = w.pair(row, group) * 2;
  if (first < w.width) values[pair] = dense[row * w.width + first];
  if (second < w.width) values[pair + 1] = dense[row * w.width + second];
}
