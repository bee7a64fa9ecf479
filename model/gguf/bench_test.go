package gguf

import "testing"

// BenchmarkDequantise is the speed of reading a quantised tensor, in bytes of float32.
func BenchmarkDequantise(b *testing.B) {
	f, _ := goldenFile(b)
	for _, t := range f.Tensors() {
		b.Run(t.Name, func(b *testing.B) {
			values := make([]float32, t.Elements())
			b.SetBytes(4 * t.Elements())
			for range b.N {
				if err := f.ReadFloat32s(values, t, 0); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
