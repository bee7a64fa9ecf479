// Tiles in the processor's tile registers. See tile_portable.h for what each
// operation means; the bits are the same.

// All eight tiles are 16 rows of 64 bytes. The intrinsic takes the constant by a
// pointer to 8 of its 64 bytes, hence the barrier.
static const struct {
	uint8_t palette, start_row, reserved[14];
	uint16_t colsb[16];
	uint8_t rows[16];
} tile_shape __attribute__((aligned(64))) = {.palette = 1, .colsb = {64, 64, 64, 64, 64, 64, 64, 64}, .rows = {16, 16, 16, 16, 16, 16, 16, 16}};

// What was written before it is in memory: the tile intrinsics don't say that they read.
INLINE void tile_barrier(void) { __asm__ volatile("" ::: "memory"); }
// A thread has its tiles from tiles_on to tiles_off; what returns to Go has none.
INLINE void tiles_on(void) { __asm__ volatile("ldtilecfg %0" ::"m"(tile_shape)); }
INLINE void tiles_off(void) { _tile_release(); }
// Tiles are named by constants, and memory is named as bytes between rows.
#define tile_zero(t) _tile_zero(t)
#define tile_load(t, p, stride) _tile_loadd(t, p, (size_t)(stride))
#define tile_store(t, p, stride)                    \
	do {                                            \
		_tile_stored(t, p, (size_t)(stride));       \
		tile_barrier();                             \
	} while (0)
#define tile_mac(c, a, b) _tile_dpbf16ps(c, a, b)

// turn: to[j][i] = from[i][j] for 16 x 16 words, with so many words between rows.
INLINE void turn(uint32_t *to, int64_t ldt, const uint32_t *from, int64_t ldf) {
	__m512i a[16], b[16];
#pragma GCC unroll 16
	for (int i = 0; i < 16; i++)
		a[i] = _mm512_loadu_si512(from + i * ldf);
#pragma GCC unroll 8
	for (int i = 0; i < 16; i += 2)
		b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]), b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
	// a[4q + j]: column j of each group of four, rows 4q to 4q+3
#pragma GCC unroll 4
	for (int q = 0; q < 16; q += 4) {
		a[q] = _mm512_unpacklo_epi64(b[q], b[q + 2]), a[q + 1] = _mm512_unpackhi_epi64(b[q], b[q + 2]);
		a[q + 2] = _mm512_unpacklo_epi64(b[q + 1], b[q + 3]), a[q + 3] = _mm512_unpackhi_epi64(b[q + 1], b[q + 3]);
	}
#pragma GCC unroll 4
	for (int j = 0; j < 4; j++) {
		__m512i low = _mm512_shuffle_i32x4(a[j], a[4 + j], 0x88), high = _mm512_shuffle_i32x4(a[8 + j], a[12 + j], 0x88);
		__m512i odd = _mm512_shuffle_i32x4(a[j], a[4 + j], 0xdd), top = _mm512_shuffle_i32x4(a[8 + j], a[12 + j], 0xdd);
		_mm512_storeu_si512(to + j * ldt, _mm512_shuffle_i32x4(low, high, 0x88));
		_mm512_storeu_si512(to + (4 + j) * ldt, _mm512_shuffle_i32x4(odd, top, 0x88));
		_mm512_storeu_si512(to + (8 + j) * ldt, _mm512_shuffle_i32x4(low, high, 0xdd));
		_mm512_storeu_si512(to + (12 + j) * ldt, _mm512_shuffle_i32x4(odd, top, 0xdd));
	}
}
