// Package llama runs language models as other programs store them: of the Llama, Mistral, Qwen2, Mixtral and GPT-2 families,
// from a folder in the form of Hugging Face's transformers or from a GGUF file.
//
//	c, err := llama.Open("folder")           // or model.gguf; weights stay in the file's memory
//	m, err := llama.New(c, llama.Options{})  // compiles the decoding step
//	tokens, err := c.Tokenizer.Encode("Once upon a time")
//	logits, err := m.Append(tokens)          // the prompt, in blocks
//	logits, err = m.Append(next)             // one token more
//
// The model is a graph of matrix products, attention over caches of keys and values, rotary positions, norms and mixtures,
// which the passes of fusec fuse as they do in any other graph.
package llama
