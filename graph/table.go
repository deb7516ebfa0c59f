package graph

import "math"

// opTable is the operation table: the only list of all operations. The row of each operation is in the file of its
// family.
var opTable = []OpInfo{
	inputRow, paramRow, stateRow, constRow, unaryRow, binaryRow, selectRow, customRow, castRow, matMulRow, conv2DRow,
	conv2DTransposeRow, conv2DFilterGradRow, separableConv2DRow, reduceRow, reshapeRow, transposeRow, broadcastRow, sliceRow,
	unsliceRow, updateSliceRow,
	concatRow, padRow,
	im2ColRow, col2ImRow, copyRow, allReduceRow, gatherRow, scatterAddRow, topKRow, routeRow, sampleRow, dropoutRow,
	quantizeRow, dequantizeRow, packWeightsRow, panelMatMulRow,
	reduceScatterRow, allGatherRow, allToAllRow, partRow, permuteRow, broadcastFromRow,
	randomRow, softmaxRow, logSoftmaxRow, layerNormRow, rmsNormRow, batchNormRow, groupNormRow, attentionRow,
	ropeRow, attentionGradRow, squaredNormRow, moeRow, moeGradRow, poolRow, poolGradRow, recurrenceRow, recurrenceGradRow, resultRow,
	fusionRow, hostRow,
}

func always(*Node) bool { return true }

// first is true of operand 0.
func first(i int) bool { return i == 0 }

func free(Op, []Type, []Type) int64 { return 0 }

// product multiplies counts; a product too large for an int64 becomes the largest int64.
func product(a, b int64) int64 {
	if b > 0 && a > math.MaxInt64/b {
		return math.MaxInt64
	}
	return a * b
}

func elems(t Type) int64 { return int64(t.Shape.Elems()) }

func perOperand(_ Op, args, _ []Type) int64 { return elems(args[0]) }

func times(k int64) func(Op, []Type, []Type) int64 {
	return func(_ Op, args, _ []Type) int64 { return k * elems(args[0]) }
}
