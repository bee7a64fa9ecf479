// Package export writes trained weights in the forms that other tools load, and reads the adapters that people bring.
//
// [Adapter] makes PEFT's folder, [Merged] a folder in the layout of the base model, [GGUF] one file, [ONNX] one or two. Each answers
// with a [Plan]: the files with their exact sizes, each of which can be written alone, to any writer, any number of times, with
// the same bytes. Weights are streamed: a block of rows and one adapter are the most that is held.
//
// [ReadAdapter] is the way in: it checks an adapter against its base model, names everything that is missing, unexpected
// or beyond what is done here, and gives the tensors under our own names. [Imported.Uniform] folds modules of different
// ranks and scales into the one rank and scale of a run.
package export
