/* Classifies the digits of testdata/models by a trained network, and times the run. */
#include "fusec.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { ROWS = 360, PIXELS = 64, CLASSES = 10 };

static void fail(const char *what) {
	fprintf(stderr, "%s: %s\n", what, fusec_error());
	exit(1);
}

static float *read_npy(const char *path) { /* f32[ROWS,PIXELS]: the elements are the end of the file */
	float *pixels = malloc(sizeof(float) * ROWS * PIXELS);
	FILE *f = fopen(path, "rb");
	if (!pixels || !f || fseek(f, -(long)(sizeof(float) * ROWS * PIXELS), SEEK_END) ||
	    fread(pixels, sizeof(float), ROWS * PIXELS, f) != ROWS * PIXELS) {
		perror(path);
		exit(1);
	}
	fclose(f);
	return pixels;
}

int main(int argc, char **argv) {
	if (argc != 3) {
		fprintf(stderr, "usage: %s digits-mlp.graph digits-mlp.pixels.npy\n", argv[0]);
		return 2;
	}
	const char *options[] = {"threads=2", NULL};
	fusec_program *p = fusec_open(argv[1], options);
	if (!p)
		fail(argv[1]);

	float *pixels = read_npy(argv[2]);
	int64_t shape[] = {ROWS, PIXELS};
	DLTensor in = {.data = pixels, .device = {kDLCPU, 0}, .ndim = 2, .dtype = {kDLFloat, 32, 1}, .shape = shape};
	if (fusec_set(p, "pixels", &in) || fusec_run(p))
		fail("run");

	struct timespec start, end;
	clock_gettime(CLOCK_MONOTONIC, &start);
	enum { RUNS = 100 };
	for (int i = 0; i < RUNS; i++)
		if (fusec_run(p))
			fail("run");
	clock_gettime(CLOCK_MONOTONIC, &end);

	fusec_value output; /* the model has one */
	DLTensor logits;
	if (fusec_describe(p, FUSEC_OUTPUT, 0, &output) || fusec_get(p, output.name, &logits))
		fail("output");
	int count[CLASSES] = {0};
	for (int row = 0; row < ROWS; row++) {
		const float *scores = (const float *)logits.data + row * CLASSES;
		int best = 0;
		for (int c = 1; c < CLASSES; c++)
			if (scores[c] > scores[best])
				best = c;
		count[best]++;
	}
	for (int c = 0; c < CLASSES; c++)
		printf("%d: %d images\n", c, count[c]);
	printf("%.1f us a run\n", ((end.tv_sec - start.tv_sec) * 1e9 + (end.tv_nsec - start.tv_nsec)) / 1e3 / RUNS);

	char *fusions = fusec_report(p, "fusions");
	if (!fusions)
		fail("report");
	printf("%s", fusions);
	fusec_free(fusions);
	free(pixels);
	return fusec_close(p) ? 1 : 0;
}
