package arch

import "smolgym/model/ir"

// Qwen2: as Llama, with biases on query, key and value and nowhere else.
var qwen2 = family{
	name: "qwen2", architecture: "Qwen2ForCausalLM", eps: 1e-6, positions: 32768, theta: 10000,
	layerKinds: []string{fullAttention, slidingAttention},
	consumes:   qwenWindows,
	layer: func(b *builder, i int, h ir.ID) ir.ID {
		return b.preNormLayer(i, h, attentionOptions{qkvBias: true, window: b.qwenWindow(i)}, false)
	},
}

var qwenWindows = []string{"use_sliding_window", "sliding_window", "max_window_layers"}

// flaggedWindow is the window of a model that needs use_sliding_window for it.
func (b *builder) flaggedWindow() int {
	if !or(b.c.UseSlidingWindow, false) {
		return 0
	}
	return b.window(4096)
}

// qwenWindow is that of layer i: by layer_types, or else from max_window_layers on.
func (b *builder) qwenWindow(i int) int {
	in := i >= or(b.c.MaxWindowLayers, 28)
	if len(b.c.LayerTypes) > 0 {
		in = b.c.LayerTypes[i] == slidingAttention
	}
	if !in {
		return 0
	}
	return b.flaggedWindow()
}
