//go:build linux && cgo && amd64

// The kernels for AVX2 with FMA.
#pragma GCC target("avx2,fma")
#include "kernel.h"
#include "vec_avx2.h"
#define LEVEL(name) name##_avx2
#include "level.h"
