package narrow

// What the tests of this package look at.
var (
	Contraction = contraction
	Contracted  = contracted
)
