//go:build linux && cgo && amd64

// The bits of level_amx.c on a processor without tiles.
#pragma GCC target("avx2,fma")
#include "kernel.h"
#include "vec_avx2.h"
#include "tile_twin.h"
#define HAVE_TILES
#define LEVEL(name) name##_amx_avx2
#include "level.h"
