//go:build linux && cgo && arm64

// The kernels for NEON, which every AArch64 processor has.
#include "kernel.h"
#include "vec_neon.h"
#define LEVEL(name) name##_neon
#include "level.h"
