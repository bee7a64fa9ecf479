//go:build linux && cgo

// The kernels in plain C, for any processor.
#include "kernel.h"
#include "vec_portable.h"
#define LEVEL(name) name##_portable
#include "level.h"
