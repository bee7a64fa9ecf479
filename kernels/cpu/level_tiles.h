// The register tiles from which every matrix product is made: over float32, and
// over bfloat16 with float32 sums (names that end in 16) where level_tile.h isn't
// used.

// float32: lane l of a sum takes k = l, l+16, ... by fma.
#define ELEM float
#define VEC v16
#define N(name) name
#define LOAD(p) vload(p)
#define LOAD_N(p, n) vload_n(p, n)
#define SET(x) vset(x)
#define MAC(acc, a, b) vfma(a, b, acc)
#define MODE_ON(m, n, acc)
#define MODE_OFF(m, n, acc)
#define STEP 16
#include "level_dot.h"
#undef HAVE_DOT_STEP
#include "level_outer.h"

#ifdef HAVE_TILES
#undef STEP
#else

// bfloat16: a lane takes two neighbours at a time, the second one first; see hdot.
#define VEC h32
#define MAC(acc, a, b) hdot(acc, a, b)
#define MODE_ON(m, n, acc) unsigned mode = hmode_on(); pin(m, n, &acc[0][0], sizeof acc[0] / sizeof acc[0][0])
#define MODE_OFF(m, n, acc) pin(m, n, &acc[0][0], sizeof acc[0] / sizeof acc[0][0]), hmode_off(mode)

// pin keeps sums on this side of a change of mode.
INLINE void pin(const int m, const int n, v16 *acc, const int width) {
#pragma GCC unroll 6
	for (int i = 0; i < m; i++)
#pragma GCC unroll 6
		for (int j = 0; j < n; j++)
			PIN(acc[i * width + j]);
}

#define ELEM bf16
#define N(name) name##16
#define LOAD(p) hload(p)
#define LOAD_N(p, n) hload_n(p, n)
#define STEP 32
#include "level_dot.h"
#undef ELEM
#undef LOAD
#undef LOAD_N

// Along a slow axis the elements are pairs of neighbours on it, two in a word.
#define ELEM pair16
#define LOAD(p) hload((const bf16 *)(p))
#define LOAD_N(p, n) hload_n((const bf16 *)(p), 2 * (n))
#define SET(x) hset(x)
#include "level_outer.h"
#endif
