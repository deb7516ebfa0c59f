package moe

// Activation names an activation, as near misses do.
var Activation = activation
