// OpenBLAS: PROGRAM workload threads seconds. It multiplies matrices and nothing else: gemm-* and linear-plain.
// The numbers, the clock and the printed line are those of common.py.
#define _GNU_SOURCE
#include <cblas.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_REPS = 20000 };

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + 1e-9 * t.tv_nsec;
}

static int by_size(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static float *gen(long long seed, float scale, long long n) {
  float *x = aligned_alloc(64, (size_t)(n * 4 + 63) / 64 * 64);
  if (!x) abort();
  for (long long i = 0; i < n; i++) {
    float u = (float)((i * 7919 + seed * 104729 + 13) % 1000) / 1000.0f;
    float c = u - 0.5f;
    x[i] = c * scale;
  }
  return x;
}

static double peak_mb(void) {
  char line[256];
  long kb = 0;
  FILE *f = fopen("/proc/self/status", "r");
  while (f && fgets(line, sizeof line, f))
    if (sscanf(line, "VmHWM: %ld", &kb) == 1) break;
  if (f) fclose(f);
  return kb / 1024.0;
}

// times runs for at least `seconds` and `least` runs, and gives their number; t is sorted.
static int times(double *t, double seconds, int least, int m, int k, int n, const float *a, const float *b, float *c) {
  int r = 0;
  for (double t0 = now(); r < MAX_REPS;) {
    double s = now();
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, m, n, k, 1, a, k, b, n, 0, c, n);
    double e = now();
    t[r++] = e - s;
    if (r >= least && e - t0 >= seconds) break;
  }
  qsort(t, r, sizeof *t, by_size);
  return r;
}

int main(int argc, char **argv) {
  if (argc != 4) {
    fprintf(stderr, "usage: %s workload threads seconds\n", argv[0]);
    return 2;
  }
  int threads = atoi(argv[2]), m = 0, k = 0, n = 0;
  double seconds = atof(argv[3]);
  float scale = 1;
  char version[64] = "unknown";
  sscanf(openblas_get_config(), "OpenBLAS %63s", version);
  printf("{\"peer\":\"openblas\",\"version\":\"%s\",\"workload\":\"%s\",\"threads\":%d,", version, argv[1], threads);
  if (!strcmp(argv[1], "linear-plain"))
    m = 512, k = 768, n = 3072, scale = 0.1f;
  else if (sscanf(argv[1], "gemm-%dx%dx%d", &m, &k, &n) != 3 && sscanf(argv[1], "gemm-%d", &m) == 1)
    k = n = m;
  if (m <= 0 || k <= 0 || n <= 0) {
    printf("\"unsupported\":\"OpenBLAS multiplies matrices and nothing else\"}\n");
    return 0;
  }
  openblas_set_num_threads(threads);
  float *a = gen(1, 1, (long long)m * k), *b = gen(2, scale, (long long)k * n), *c = gen(0, 0, (long long)m * n);
  static double t[MAX_REPS];
  times(t, 0, 1, m, k, n, a, b, c);
  double first = t[0], sum = 0, abs_sum = 0;
  for (long long i = 0; i < (long long)m * n; i++) {
    sum += c[i] * (double)((i * 31 + 7) % 101) / 101.0;
    abs_sum += fabs(c[i]);
  }
  times(t, 0.2, 3, m, k, n, a, b, c);
  int r = times(t, seconds, 9, m, k, n, a, b, c);
  double med = t[r / 2];
  printf("\"median_ms\":%.6f,\"best_ms\":%.6f,\"gflops\":%.3f,\"reps\":%d,\"first_ms\":%.6f,\"rss_mb\":%.1f,"
         "\"checksum\":%.17g,\"abs_sum\":%.17g,\"variant\":\"sgemm\"}\n",
         med * 1e3, t[0] * 1e3, 2.0 * m * k * n / med / 1e9, r, first * 1e3, peak_mb(), sum, abs_sum);
  return 0;
}
