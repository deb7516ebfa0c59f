package gemm

// localTask computes a whole matrix of the batch, packing for itself.
type localTask[T Float] Plan[T]

func (t *localTask[T]) Do(worker, batch int) {
	p := (*Plan[T])(t)
	cfg := &p.cfg
	a, b, edge := p.private(worker)
	for k0 := 0; k0 < cfg.K; k0 += p.kc {
		kc := min(p.kc, cfg.K-k0)
		if cfg.Prepacked != nil {
			b = cfg.Prepacked.panels(batch, k0, 0)
		} else {
			p.packB(worker, b, batch, 0, cfg.N, k0, kc)
		}
		for row := 0; row < cfg.M; row += p.mc {
			rows := min(p.mc, cfg.M-row)
			p.packA(worker, a, batch, row, rows, k0, kc)
			c := p.run.c[cfg.C.at(batch)+row*cfg.C.RowStride:]
			p.multiply(a, b, c, edge, rows, cfg.N, kc, k0 > 0)
			if k0+kc == cfg.K {
				p.finish(worker, batch, row, 0, rows, cfg.N)
			}
		}
	}
}
