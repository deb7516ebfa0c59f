package moe

// Activation names an activation, as missed fusions do.
var Activation = activation
