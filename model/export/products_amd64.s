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
