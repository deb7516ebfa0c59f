// Package tokenizer splits text into the tokens of a language model and joins them again: by byte-pair encoding (Sennrich et
// al., arXiv 1508.07909) with the vocabulary of a tokenizer.json, as Hugging Face's tokenizers write it, or of a GGUF file.
//
// It reads the forms that the Llama, Mistral, Qwen2 and GPT-2 families have: byte-level vocabularies with a pre-tokenizer of
// regular expressions, and vocabularies of SentencePiece with a fallback to bytes. What else a tokenizer.json can say is an
// error that names it.
package tokenizer
