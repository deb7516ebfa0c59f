package conv

// Begin starts a run in which workers compute rows of the result by [Plan.Lines], until [Plan.End]. Arguments are those of
// [Plan.Run]. The bands of the plan are of one image: its Config has a Band of no more pixels than the result of one.
func (k *Plan[T]) Begin(x, w []T, finish *Finish[T]) error {
	r := run[T]{x: x, w: w, finish: finish}
	if err := k.checkRun(&r); err != nil || k.batch == 0 {
		return err
	}
	k.begin(r)
	return nil
}

// End ends the run that Begin started.
func (k *Plan[T]) End() {
	if k.batch > 0 {
		k.release()
	}
}

// Lines computes rows y to y+n of the result of an image, for one worker of the pool: OW·O elements for each row, whose pixels
// are RowStride elements apart, from dst on.
func (k *Plan[T]) Lines(number, image, y, n int, dst []T) {
	ldc := k.cfg.RowStride
	for end := y + n; y < end; y += k.h.band {
		for x := 0; x < k.w.out; x += k.w.band {
			b := band{image: image, images: 1, y: y, rows: min(k.h.band, end-y), x: x, cols: min(k.w.band, k.w.out-x)}
			at := (n-(end-y))*k.w.out + x
			k.workers[number].band = -1
			k.compute(number, 0, &b, (image*k.h.out+y)*k.w.out+x, dst[at*ldc:], 0, k.shape.groups*k.shape.panels)
		}
	}
}
