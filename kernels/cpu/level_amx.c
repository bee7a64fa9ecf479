//go:build linux && cgo && amd64

// The kernels for AMX (tiles, BF16), which comes with all of AVX-512 that the
// others use.
#pragma GCC target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,amx-tile,amx-bf16,prefer-vector-width=512")
#include "kernel.h"
#include "vec_avx512.h"
#include "tile_amx.h"
#define HAVE_TILES
#define LEVEL(name) name##_amx
#include "level.h"
