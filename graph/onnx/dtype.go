package onnx

import (
	"fmt"

	"fusec/graph"
	"fusec/graph/onnx/internal/pb"
)

// elemTypes are the element types that both sides have.
var elemTypes = map[pb.TensorProto_DataType]graph.DType{
	pb.TensorProto_FLOAT: graph.F32, pb.TensorProto_DOUBLE: graph.F64, pb.TensorProto_INT32: graph.I32,
	pb.TensorProto_INT64: graph.I64,
	pb.TensorProto_INT8:  graph.I8, pb.TensorProto_UINT8: graph.U8, pb.TensorProto_INT16: graph.I16, pb.TensorProto_UINT16: graph.U16,
	pb.TensorProto_UINT32: graph.U32, pb.TensorProto_UINT64: graph.U64, pb.TensorProto_BOOL: graph.Bool,
	pb.TensorProto_FLOAT16: graph.F16, pb.TensorProto_BFLOAT16: graph.BF16,
	pb.TensorProto_INT4: graph.I4, pb.TensorProto_FLOAT8E4M3FN: graph.F8E4M3, pb.TensorProto_FLOAT8E5M2: graph.F8E5M2,
}

// elemType is the element type that a model gives by its number.
func elemType(number int32) (graph.DType, error) {
	k := pb.TensorProto_DataType(number)
	if d, ok := elemTypes[k]; ok {
		return d, nil
	}
	return graph.Invalid, fmt.Errorf("elements of type %s are not supported", typeName(k))
}

// typeName is the name of an element type as ONNX has it.
func typeName(k pb.TensorProto_DataType) string {
	if name, ok := pb.TensorProto_DataType_name[int32(k)]; ok {
		return name
	}
	return fmt.Sprintf("%d, which is unknown,", k)
}

// onnxType is the inverse of elemType.
func onnxType(d graph.DType) pb.TensorProto_DataType {
	for k, e := range elemTypes {
		if e == d {
			return k
		}
	}
	return pb.TensorProto_UNDEFINED
}
