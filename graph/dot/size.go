package dot

import "unicode/utf8"

// Sizes of text and of the space between boxes, in points, as Graphviz has them with the picture's fonts and distances.
const (
	lineHeight  = 12.0 // of 10 points
	smallHeight = 10.0 // of 8 points
	charWidth   = 5.3
	smallWidth  = 4.3
	rankGap     = 23.0
	nodeGap     = 21.6
)

// mostPoints is the size of a picture, in points on each side, that Auto tries to stay within.
const mostPoints = 4000

// size estimates the box's size.
func (b *box) size() (width, height float64) {
	text := func(s string, char, line float64) {
		width, height = max(width, char*float64(utf8.RuneCountInString(s))), height+line
	}
	for _, l := range b.lines {
		if l.role == roleType {
			text(l.text, smallWidth, smallHeight)
		} else {
			text(l.text, charWidth, lineHeight)
		}
	}
	if b.head == "" {
		return width + 15, max(height+8, 22)
	}
	text(b.head, charWidth, lineHeight+5)
	for _, s := range b.sources {
		text(s, smallWidth, smallHeight)
	}
	for _, m := range b.marks {
		text(m, charWidth, lineHeight+4)
	}
	if len(b.sources) > 0 {
		height += 5
	}
	if b.time > 0 {
		height += 10
	}
	return width + 10, height + 8
}

// fits reports whether the picture is likely to stay within mostPoints.
func (s *scene) fits() bool {
	width, height := s.size()
	return width <= mostPoints && 0.93*height <= mostPoints
}

// size estimates the size of the picture: its ranks below each other, each as high as its highest box.
func (s *scene) size() (width, height float64) {
	depth := s.depths()
	var wide, high []float64
	for _, b := range s.nodes {
		d := depth[b]
		for len(wide) <= d {
			wide, high = append(wide, 0), append(high, 0)
		}
		w, h := b.size()
		wide[d] += w + nodeGap
		high[d] = max(high[d], h)
	}
	for d := range wide {
		width, height = max(width, wide[d]), height+high[d]+rankGap
	}
	return width, height
}
