// Tiles in memory: what tile_amx.h does with the processor's, to the bit, by the
// level's vectors. This is the definition of the operations.
#include <string.h>

typedef struct {
	uint32_t row[16][16]; // words: float32, or pairs of bfloat16
} tile_words;

static _Thread_local tile_words tiles[8];

INLINE void tile_barrier(void) {}
INLINE void tiles_on(void) {}
INLINE void tiles_off(void) {}
INLINE void tile_zero(int t) { memset(&tiles[t], 0, sizeof tiles[t]); }
INLINE void tile_load(int t, const void *p, int64_t stride) {
	for (int i = 0; i < 16; i++)
		memcpy(tiles[t].row[i], (const char *)p + i * stride, 64);
}
INLINE void tile_store(int t, void *p, int64_t stride) {
	for (int i = 0; i < 16; i++)
		memcpy((char *)p + i * stride, tiles[t].row[i], 64);
}

// tile_sum: c[i][j] += (sum of the even elements' products + sum of the odd ones').
// Both sums begin at zero and take an fma for each k in rising order; the two
// additions round once each. TDPBF16PS, Intel 64 and IA-32 Architectures Software
// Developer's Manual, volume 2.
static __attribute__((noinline)) void tile_sum(tile_words *c, const tile_words *a, const tile_words *b) {
	float even[16][16], odd[16][16];
	for (int k = 0; k < 16; k++)
		for (int j = 0; j < 16; j++) {
			uint32_t low = b->row[k][j] << 16, high = b->row[k][j] & 0xffff0000;
			memcpy(&even[k][j], &low, 4), memcpy(&odd[k][j], &high, 4);
		}
	for (int i = 0; i < 16; i++) {
		v16 e = vzero(), o = vzero();
		for (int k = 0; k < 16; k++) {
			uint32_t low = a->row[i][k] << 16, high = a->row[i][k] & 0xffff0000;
			float x, y;
			memcpy(&x, &low, 4), memcpy(&y, &high, 4);
			e = vfma(vset(x), vload(even[k]), e), o = vfma(vset(y), vload(odd[k]), o);
		}
		float *to = (float *)c->row[i];
		vstore(to, vadd(vload(to), vadd(e, o)));
	}
}

// Denormals count as zeros, going in and coming out: the processor's mode is set
// while it adds.
static __attribute__((noinline)) void tile_mac(int c, int a, int b) {
	unsigned mode = hmode_on();
	tile_sum(&tiles[c], &tiles[a], &tiles[b]);
	hmode_off(mode);
}

INLINE void turn(uint32_t *to, int64_t ldt, const uint32_t *from, int64_t ldf) {
	for (int i = 0; i < 16; i++)
		for (int j = 0; j < 16; j++)
			to[j * ldt + i] = from[i * ldf + j];
}
