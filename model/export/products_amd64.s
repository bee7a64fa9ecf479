#include "textflag.h"

// func sumsAVX2(sum, left, right *float64, rank, strips int)
//
// Y0 to Y7 are the sums of a strip: rows 0 to 3, columns 0 to 3 and 4 to 7 of each.
// Products and sums are separate instructions: a fused one would round otherwise.
TEXT ·sumsAVX2(SB), NOSPLIT, $0-40
	MOVQ sum+0(FP), DI
	MOVQ left+8(FP), SI
	MOVQ right+16(FP), DX
	MOVQ rank+24(FP), CX
	MOVQ strips+32(FP), R8
	MOVQ R8, R9
	SHLQ $6, R9           // bytes of a row of sum
	LEAQ (DI)(R9*1), R10
	LEAQ (DI)(R9*2), R11
	LEAQ (R10)(R9*2), R12

strip:
	VXORPD Y0, Y0, Y0
	VXORPD Y1, Y1, Y1
	VXORPD Y2, Y2, Y2
	VXORPD Y3, Y3, Y3
	VXORPD Y4, Y4, Y4
	VXORPD Y5, Y5, Y5
	VXORPD Y6, Y6, Y6
	VXORPD Y7, Y7, Y7
	MOVQ SI, AX
	MOVQ CX, BX

product:
	VMOVUPD (DX), Y8
	VMOVUPD 32(DX), Y9
	VBROADCASTSD (AX), Y10
	VMULPD Y8, Y10, Y11
	VADDPD Y11, Y0, Y0
	VMULPD Y9, Y10, Y12
	VADDPD Y12, Y1, Y1
	VBROADCASTSD 8(AX), Y13
	VMULPD Y8, Y13, Y14
	VADDPD Y14, Y2, Y2
	VMULPD Y9, Y13, Y15
	VADDPD Y15, Y3, Y3
	VBROADCASTSD 16(AX), Y10
	VMULPD Y8, Y10, Y11
	VADDPD Y11, Y4, Y4
	VMULPD Y9, Y10, Y12
	VADDPD Y12, Y5, Y5
	VBROADCASTSD 24(AX), Y13
	VMULPD Y8, Y13, Y14
	VADDPD Y14, Y6, Y6
	VMULPD Y9, Y13, Y15
	VADDPD Y15, Y7, Y7
	ADDQ $64, DX
	ADDQ $32, AX
	DECQ BX
	JNZ product

	VMOVUPD Y0, (DI)
	VMOVUPD Y1, 32(DI)
	VMOVUPD Y2, (R10)
	VMOVUPD Y3, 32(R10)
	VMOVUPD Y4, (R11)
	VMOVUPD Y5, 32(R11)
	VMOVUPD Y6, (R12)
	VMOVUPD Y7, 32(R12)
	ADDQ $64, DI
	ADDQ $64, R10
	ADDQ $64, R11
	ADDQ $64, R12
	DECQ R8
	JNZ strip
	VZEROUPPER
	RET

// What addBF16AVX2 computes with, in words of 64 bits; the last two are a shuffle
// that brings the low 16 bits of two words together.
DATA round<>+0(SB)/8, $1
DATA round<>+8(SB)/8, $0x00000fffffffffff // half of a bfloat16's last place, less one
DATA round<>+16(SB)/8, $0x3ffff           // 11 bits of exponent, 7 of mantissa
DATA round<>+24(SB)/8, $0x1c000           // 1023-127, as an exponent
DATA round<>+32(SB)/8, $0x7f              // below the smallest normal number
DATA round<>+40(SB)/8, $0x7f80            // infinity
DATA round<>+48(SB)/8, $0x8000            // the sign
DATA round<>+56(SB)/8, $0x8080808009080100
DATA round<>+64(SB)/8, $0x8080808080808080
GLOBL round<>(SB), RODATA|NOPTR, $72

// func addBF16AVX2(dst *byte, w *float32, sum *float64, scale float64, fours int) (done int)
TEXT ·addBF16AVX2(SB), NOSPLIT, $0-48
	MOVQ dst+0(FP), DI
	MOVQ w+8(FP), SI
	MOVQ sum+16(FP), DX
	VBROADCASTSD scale+24(FP), Y15
	MOVQ fours+32(FP), CX
	XORQ AX, AX
	VPBROADCASTQ round<>+0(SB), Y14
	VPBROADCASTQ round<>+8(SB), Y13
	VPBROADCASTQ round<>+16(SB), Y12
	VPBROADCASTQ round<>+24(SB), Y11
	VPBROADCASTQ round<>+32(SB), Y10
	VPBROADCASTQ round<>+40(SB), Y9
	VPBROADCASTQ round<>+48(SB), Y8
	VBROADCASTI128 round<>+56(SB), Y7

four:
	VMOVUPD (DX), Y0
	VMULPD Y15, Y0, Y0
	VCVTPS2PD (SI), Y1
	VADDPD Y0, Y1, Y0      // w + scale·sum, in two roundings
	VPSRLQ $45, Y0, Y1
	VPAND Y14, Y1, Y1      // the last bit that stays: ties go to even
	VPADDQ Y13, Y0, Y2
	VPADDQ Y1, Y2, Y2
	VPSRLQ $45, Y2, Y2
	VPAND Y12, Y2, Y2
	VPSUBQ Y11, Y2, Y2     // exponent and mantissa of the bfloat16
	VPCMPGTQ Y10, Y2, Y3
	VPCMPGTQ Y2, Y9, Y4
	VPAND Y3, Y4, Y3
	VMOVMSKPD Y3, BX
	CMPL BX, $15
	JNE done
	VPSRLQ $48, Y0, Y5
	VPAND Y8, Y5, Y5
	VPOR Y5, Y2, Y2
	VPSHUFB Y7, Y2, Y2
	VEXTRACTI128 $1, Y2, X3
	VPUNPCKLDQ X3, X2, X2
	VMOVQ X2, (DI)
	ADDQ $32, DX
	ADDQ $16, SI
	ADDQ $8, DI
	INCQ AX
	CMPQ AX, CX
	JLT four

done:
	VZEROUPPER
	MOVQ AX, done+40(FP)
	RET
