package driver

import (
	"encoding/binary"

	kernels "fusec/kernels/cuda"
)

// Addresses are those to which parameters of a kernel's steps refer.
type Addresses struct {
	Args, Results                 []Ptr
	Scratch, Zeroed, Kept, Status Ptr
}

// Of is the address that a parameter is.
func (a *Addresses) Of(p kernels.Param) Ptr {
	switch p.Kind {
	case kernels.ArgPtr:
		return a.Args[p.Index] + Ptr(p.Byte)
	case kernels.ResultPtr:
		return a.Results[p.Index] + Ptr(p.Byte)
	case kernels.ScratchPtr:
		return a.Scratch + Ptr(p.Byte)
	case kernels.ZeroedPtr:
		return a.Zeroed + Ptr(p.Byte)
	case kernels.KeptPtr:
		return a.Kept + Ptr(p.Byte)
	}
	return a.Status
}

// Params is the memory of a step's parameters. The GPU encodes tensor maps.
func (a *Addresses) Params(gpu GPU, s *kernels.Step) ([]byte, error) {
	at, size := s.Offsets()
	params := make([]byte, size)
	for i, p := range s.Params {
		to := params[at[i]:]
		switch p.Kind {
		case kernels.Int32, kernels.Float32:
			binary.LittleEndian.PutUint32(to, uint32(p.Bits))
		case kernels.Int64:
			binary.LittleEndian.PutUint64(to, p.Bits)
		case kernels.MapParam:
			if err := gpu.EncodeMap(p.Map, a.Of(p.Map.Base), (*[128]byte)(to)); err != nil {
				return nil, err
			}
		default:
			binary.LittleEndian.PutUint64(to, uint64(a.Of(p)))
		}
	}
	return params, nil
}
