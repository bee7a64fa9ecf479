//go:build linux && cgo && amd64

// The kernels for AVX-512 (F, BW, DQ, VL) with BF16.
#pragma GCC target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,prefer-vector-width=512")
#include "kernel.h"
#include "vec_avx512.h"
#define LEVEL(name) name##_avx512bf16
#include "level.h"
