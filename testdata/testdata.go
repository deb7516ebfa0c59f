// Package testdata carries the data sets that come with the project, so that programs that train on them run from any
// folder. Where each comes from and its licence stand in its folder's README.
package testdata

import _ "embed"

// Digits is the gzipped CSV file of handwritten digits.
//
//go:embed digits/digits.csv.gz
var Digits []byte

// Novel is the text of "Northanger Abbey".
//
//go:embed text/northanger-abbey.txt
var Novel []byte

// KarateEdges is the CSV file of the karate club's friendships.
//
//go:embed karate/edges.csv
var KarateEdges []byte

// KarateClubs is the CSV file of the side that each member took.
//
//go:embed karate/clubs.csv
var KarateClubs []byte
