// Tests include/fusec.h from C. Arguments: a model with its weights, and how many times it is opened.
#include "fusec.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(ok)                                                                                                              \
	do {                                                                                                                   \
		if (!(ok)) {                                                                                                   \
			fprintf(stderr, "test.c:%d: %s: %s\n", __LINE__, #ok, fusec_error());                                  \
			exit(1);                                                                                               \
		}                                                                                                              \
	} while (0)
#define FAILS(call, text) CHECK((call) && strstr(fusec_error(), text))

static const char model[] = "fusec graph 1 \"model\" {\n"
                            "  x = input : f32[2,3]\n"
                            "  w = param : f32[3,2]\n"
                            "  %2 = matmul x w : f32[2,2]\n"
                            "  %3 = unary[fn=tanh] %2 : f32[2,2]\n"
                            "  output y = %3\n"
                            "}\n";

static DLTensor tensor(void *data, int ndim, int64_t *shape) {
	return (DLTensor){.data = data, .device = {kDLCPU, 0}, .ndim = ndim, .dtype = {kDLFloat, 32, 1}, .shape = shape};
}

// A program's values, in place.
static void values(void) {
	const char *options[] = {"threads=1", NULL};
	fusec_program *p = fusec_parse(model, strlen(model), options);
	CHECK(p);
	CHECK(fusec_count(p, FUSEC_INPUT) == 1 && fusec_count(p, FUSEC_PARAMETER) == 1 && fusec_count(p, FUSEC_OUTPUT) == 1);
	fusec_value v;
	CHECK(!fusec_describe(p, FUSEC_PARAMETER, 0, &v));
	CHECK(!strcmp(v.name, "w") && v.ndim == 2 && v.shape[0] == 3 && v.shape[1] == 2 && v.dtype.code == kDLFloat);

	float x[] = {1, 2, 3, 4, 5, 6}, w[] = {1, 0, 0, 1, 0, 0};
	int64_t xs[] = {2, 3}, ws[] = {3, 2};
	DLTensor tx = tensor(x, 2, xs), tw = tensor(w, 2, ws), y;
	CHECK(!fusec_set(p, "x", &tx) && !fusec_set(p, "w", &tw) && !fusec_run(p) && !fusec_get(p, "y", &y));
	const float *got = y.data;
	CHECK(got[0] > 0.7615f && got[0] < 0.7617f); // tanh 1
	x[0] = 0;                                     // read in place
	CHECK(!fusec_start(p) && !fusec_wait(p) && !fusec_get(p, "y", &y) && ((float *)y.data)[0] == 0);

	char *svg = fusec_report(p, "svg");
	CHECK(svg && strstr(svg, "<svg"));
	fusec_free(svg);
	FAILS(!fusec_report(p, "pdf"), "pdf");
	FAILS(fusec_describe(p, FUSEC_OUTPUT, 1, &v), "index 1");
	FAILS(fusec_count(p, (fusec_kind)7) == -1, "kind 7");
	FAILS(fusec_set(p, NULL, &tx), "NULL");
	FAILS(fusec_set(p, "x", NULL), "no tensor");
	FAILS(fusec_set(p, "x", &tw), "f32[2,3]");
	FAILS(fusec_get(p, "x", &y), "\"x\"");
	CHECK(!fusec_close(p));
	FAILS(fusec_run(p), "closed");
	FAILS(fusec_close(p), "closed");
	CHECK(!fusec_close(NULL));
	FAILS(!fusec_open(NULL, NULL), "NULL");
	FAILS(!fusec_open("missing.graph", NULL), "missing.graph");
	FAILS(!fusec_parse("x", 1, NULL), "text:1");
	FAILS(!fusec_parse("x", (size_t)-1, NULL), "more than 67108864");
}

// A kernel and its gradient.
static void kernels(void) {
	float x[] = {1, -2, 3, 4}, gain[] = {1, 2}, y[4], dy[] = {1, 1, 1, 1}, dx[4], dgain[2];
	int64_t xs[] = {2, 2}, n[] = {2};
	DLTensor tx = tensor(x, 2, xs), tg = tensor(gain, 1, n), ty = tensor(y, 2, xs), td = tensor(dy, 2, xs), tdx = tensor(dx, 2, xs),
	         tdg = tensor(dgain, 1, n);
	CHECK(!fusec_rms_norm(&tx, &tg, 1e-6, &ty));
	CHECK(y[0] > 0.632f && y[0] < 0.633f && y[1] < -2.529f && y[1] > -2.531f);
	CHECK(!fusec_rms_norm_backward(&tx, &tg, 1e-6, &td, &tdx, &tdg));
	CHECK(!fusec_linear(&tx, &tx, NULL, &tx, "relu", &ty));
	CHECK(y[0] == 1 && y[1] == -2 && y[2] == 18 && y[3] == 14);
	FAILS(fusec_linear(&tx, NULL, NULL, NULL, NULL, &ty), "no w was given");
	CHECK(!fusec_kernels_free());
}

static void *other(void *unused) {
	CHECK(!strcmp(fusec_error(), "")); // texts are those of a thread
	FAILS(!fusec_parse("y", 1, NULL), "text:1");
	return unused;
}

static void threads(void) {
	FAILS(!fusec_open("missing.graph", NULL), "missing.graph");
	pthread_t t;
	CHECK(!pthread_create(&t, NULL, other, NULL) && !pthread_join(t, NULL));
	CHECK(strstr(fusec_error(), "missing.graph"));
}

// A child of fork gets errors, whether or not its parent has called the library.
static void forks(void) {
	int status;
	pid_t child = fork();
	if (child == 0)
		_exit(fusec_parse(model, strlen(model), NULL) != NULL || !strstr(fusec_error(), "forked"));
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

// Runs a model until the process is ended by a signal. It writes a byte to standard output when it has begun.
static int endless(const char *path) {
	static float x[360 * 64];
	int64_t xs[] = {360, 64};
	DLTensor tx = tensor(x, 2, xs);
	fusec_program *p = fusec_open(path, NULL);
	CHECK(p && !fusec_set(p, "pixels", &tx) && !fusec_run(p) && write(1, "x", 1) == 1);
	alarm(60);
	for (;;)
		CHECK(!fusec_run(p));
}

// SIGINT ends a process while the library computes.
static void interrupt(const char *self, const char *path) {
	int out[2], status;
	char began;
	CHECK(!pipe(out));
	pid_t child = fork();
	if (child == 0) {
		dup2(out[1], 1);
		close(out[0]);
		execl(self, self, path, (char *)NULL);
		_exit(1);
	}
	close(out[1]);
	CHECK(read(out[0], &began, 1) == 1 && !kill(child, SIGINT));
	CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGINT);
	close(out[0]);
}

// Elements in the caller's memory for one run, in and out.
static void calls(void) {
	float x[] = {1, 2, 3, 4, 5, 6}, w[] = {1, 0, 0, 1, 0, 0}, y[4];
	int64_t ws[] = {3, 2};
	DLTensor tw = tensor(w, 2, ws);
	fusec_program *p = fusec_parse(model, strlen(model), NULL);
	const void *in[] = {x}, *crooked[] = {(char *)x + 1};
	void *out[] = {y};
	CHECK(p && !fusec_set(p, "w", &tw) && !fusec_call(p, in, out));
	CHECK(y[0] > 0.7615f && y[0] < 0.7617f);
	FAILS(fusec_call(p, crooked, out), "not aligned");
	FAILS(fusec_call(p, NULL, out), "NULL");
	FAILS(fusec_call(NULL, in, out), "NULL");
	FAILS(fusec_queue(p, in, out, NULL, NULL), "memory=caller");
	FAILS(fusec_queue(NULL, in, out, NULL, NULL), "NULL");
	FAILS(fusec_queue_bytes(p), "memory=caller");
	FAILS(fusec_run(p), "has no value");
	CHECK(!fusec_close(p));
}

static long resident(void) { // in KiB
	FILE *f = fopen("/proc/self/statm", "r");
	long size, pages;
	CHECK(f && fscanf(f, "%ld %ld", &size, &pages) == 2);
	fclose(f);
	return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

// Programs that are opened, run and closed leave no memory behind.
static void cycles(const char *path, int n) {
	long before = 0;
	float *x = calloc(360 * 64, sizeof *x);
	int64_t xs[] = {360, 64};
	for (int i = 0; i < n; i++) {
		fusec_program *p = fusec_open(path, NULL);
		CHECK(p);
		DLTensor tx = tensor(x, 2, xs), y;
		CHECK(!fusec_set(p, "pixels", &tx) && !fusec_run(p) && !fusec_get(p, "out0", &y));
		CHECK(!fusec_close(p));
		if (i == n / 5)
			before = resident();
	}
	free(x);
	long grown = resident() - before;
	printf("%d cycles, %ld KiB more than after %d\n", n, grown, n / 5);
	CHECK(grown < 16 << 10);
}

int main(int argc, char **argv) {
	if (argc == 2)
		return endless(argv[1]);
	CHECK(argc == 3);
	forks();
	CHECK(strlen(fusec_version()) > 0);
	values();
	calls();
	kernels();
	threads();
	cycles(argv[1], atoi(argv[2]));
	interrupt(argv[0], argv[1]);
	forks();
	return 0;
}
