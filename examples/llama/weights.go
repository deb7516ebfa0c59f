package llama

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unsafe"

	"fusec/examples/llama/tokenizer"
	"fusec/graph"
	"fusec/graph/atomicfile"
	"fusec/graph/filemap"
	"fusec/graph/gguf"
	"fusec/graph/safetensors"
)

// Checkpoint is a model as files have it. Its weights are in the memory of the files, which Close gives back: programs that
// read them are closed before.
type Checkpoint struct {
	Config *Config
	// Weights are those that are no blocks of few bits, by the names that the model's family has in Hugging Face's transformers.
	Weights   map[string]*graph.Tensor
	Tokenizer *tokenizer.Tokenizer

	blocks map[string]*gguf.Tensor // matrices of Q8_0 and Q4_0, by the same names
	files  []*filemap.File
}

// Close gives the memory of the files back.
func (c *Checkpoint) Close() error {
	var err error
	for _, f := range c.files {
		err = errors.Join(err, f.Close())
	}
	c.files, c.Weights, c.blocks = nil, nil, nil
	return err
}

// Open reads a model: a folder in the form of Hugging Face, or a GGUF file.
func Open(path string) (*Checkpoint, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	c := &Checkpoint{Weights: map[string]*graph.Tensor{}, blocks: map[string]*gguf.Tensor{}}
	if info.IsDir() {
		err = c.openFolder(path)
	} else {
		err = c.openGGUF(path)
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// openFolder reads config.json, tokenizer.json, and the weights.
func (c *Checkpoint) openFolder(dir string) error {
	path := filepath.Join(dir, "config.json")
	src, err := readBounded(path)
	if err != nil {
		return fmt.Errorf("%s: the folder holds no model in the form of Hugging Face's transformers: config.json: %w", dir,
			atomicfile.Cause(path, err))
	}
	if c.Config, err = ParseConfig(src); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if err := c.readGeneration(dir); err != nil {
		return err
	}
	if src, err = readBounded(filepath.Join(dir, "tokenizer.json")); err != nil {
		return err
	}
	if c.Tokenizer, err = tokenizer.Parse(src); err != nil {
		return fmt.Errorf("%s: %w", filepath.Join(dir, "tokenizer.json"), err)
	}
	shards, err := shardsOf(dir)
	if err != nil {
		return err
	}
	for _, name := range shards {
		if err := c.openShard(filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

// maxText bounds the files of text that are read whole. The largest vocabularies take some 35 MB.
const maxText = 1 << 28

func readBounded(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err == nil && (!info.Mode().IsRegular() || info.Size() > maxText) {
		err = &fs.PathError{Op: "read", Path: path, Err: fmt.Errorf("no regular file of at most %d bytes", maxText)}
	}
	if err != nil {
		return nil, err
	}
	return os.ReadFile(path)
}

// readGeneration reads the tokens that end a text from generation_config.json, where there may be more than in config.json.
func (c *Checkpoint) readGeneration(dir string) error {
	path := filepath.Join(dir, "generation_config.json")
	src, err := readBounded(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var f struct {
		EOS ids `json:"eos_token_id"`
	}
	if err := json.Unmarshal(src, &f); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if f.EOS != nil {
		c.Config.EOS = f.EOS
	}
	return nil
}

// shardsOf lists the files of weights in a folder: model.safetensors, or those of its index.
func shardsOf(dir string) ([]string, error) {
	const whole = "model.safetensors"
	if _, err := os.Stat(filepath.Join(dir, whole)); err == nil {
		return []string{whole}, nil
	}
	path := filepath.Join(dir, whole+".index.json")
	src, err := readBounded(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: there is neither a %s nor a %[2]s.index.json", dir, whole)
	}
	if err != nil {
		return nil, err
	}
	var index struct {
		Files map[string]string `json:"weight_map"`
	}
	if err := json.Unmarshal(src, &index); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	names := slices.Compact(slices.Sorted(maps.Values(index.Files)))
	if len(names) == 0 {
		return nil, fmt.Errorf("%s: weight_map names no file", path)
	}
	for _, name := range names {
		if !filepath.IsLocal(name) || filepath.Base(name) != name {
			return nil, fmt.Errorf("%s: weight_map names the file %q, which is not in this folder", path, name)
		}
	}
	return names, nil
}

// openShard maps a file of weights.
func (c *Checkpoint) openShard(path string) error {
	f, err := filemap.Open(path)
	if err != nil {
		return err
	}
	c.files = append(c.files, f)
	r, err := safetensors.NewReader(bytes.NewReader(f.Data), int64(len(f.Data)))
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	for _, info := range r.Tensors() {
		name := strings.TrimPrefix(info.Name, "transformer.")
		if isBuffer(name) {
			continue
		}
		if c.Weights[name] != nil {
			return fmt.Errorf("%s: tensor %q is in the checkpoint twice", path, name)
		}
		t, err := mapped(r, f.Data, info)
		if err != nil {
			return fmt.Errorf("%s: tensor %q: %w", path, info.Name, err)
		}
		c.Weights[name] = t
	}
	return nil
}

// isBuffer reports whether a tensor is no weight: old files have masks, and the angles of rotary positions.
func isBuffer(name string) bool {
	return strings.HasSuffix(name, ".attn.bias") || strings.HasSuffix(name, ".attn.masked_bias") ||
		strings.HasSuffix(name, ".rotary_emb.inv_freq")
}

var dtypes = map[string]graph.DType{"F32": graph.F32, "BF16": graph.BF16, "F16": graph.F16}

// mapped is a tensor in the memory of the file, or a copy where the file does not align it.
func mapped(r *safetensors.Reader, data []byte, info safetensors.Info) (*graph.Tensor, error) {
	d, ok := dtypes[info.DType]
	if !ok {
		return nil, fmt.Errorf("numbers of type %s: want F32, BF16 or F16", info.DType)
	}
	if len(info.Shape) > graph.MaxRank {
		return nil, fmt.Errorf("it has %d axes, more than %d", len(info.Shape), graph.MaxRank)
	}
	begin, size := r.Place(info)
	return tensorAt(data[begin:][:size], graph.TypeOf(d, info.Shape...)), nil
}

// tensorAt is the tensor whose elements are the bytes of b, in their memory if they are aligned.
func tensorAt(b []byte, t graph.Type) *graph.Tensor {
	if uintptr(unsafe.Pointer(unsafe.SliceData(b)))%uintptr(t.DType.Size()) != 0 {
		c := graph.NewTensor(t)
		copy(c.Bytes(), b)
		return c
	}
	return graph.TensorAt(b, t)
}
