// A stand-in for libcuda that the program is linked with: every function of the driver as a jump through a table,
// which fusec_cuda_load fills from the libcuda.so.1 of the machine that it runs on. So a program is built without a
// driver, and one that was built with CUDA starts without one. names.h, made by with-cuda.sh, has FUNCTION(number,
// name) for each.

#include <dlfcn.h>
#include <stddef.h>

enum { SUCCESS = 0, NOT_INITIALIZED = 3, NOT_FOUND = 500 };

static int before_load(void) { return NOT_INITIALIZED; }
static int not_in_driver(void) { return NOT_FOUND; }

typedef int (*function)(void);

function fusec_cuda_table[] __attribute__((visibility("hidden"))) = {
#define FUNCTION(number, name) before_load,
#include "names.h"
#undef FUNCTION
};

static const char *const names[] = {
#define FUNCTION(number, name) #name,
#include "names.h"
#undef FUNCTION
};

#if defined(__x86_64__)
#define KIND "@function"
#define JUMP(entry) "jmp *" entry "(%rip)\n"
#elif defined(__aarch64__)
#define KIND "%function"
#define JUMP(entry) "adrp x16, " entry "\n\tldr x16, [x16, #:lo12:" entry "]\n\tbr x16\n"
#else
#error "no jump is written for this processor"
#endif
#define FUNCTION(number, name)                                                                                        \
	__asm__(".text\n.globl " #name "\n.type " #name ", " KIND "\n" #name ":\n\t" JUMP("fusec_cuda_table+8*" #number));
#include "names.h"

// gorgonia.org/cu calls cuInit before main and ends the program if it fails. It always succeeds; the driver's own is
// called by fusec_cuda_load.
int cuInit(unsigned flags) {
	(void)flags;
	return SUCCESS;
}

// fusec_cuda_load loads the driver and initialises it. It returns the driver's result; if there is no driver, -1 and
// the loader's message.
int fusec_cuda_load(const char **message) {
	void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	if (!driver) {
		*message = dlerror();
		return -1;
	}
	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		function f = (function)dlsym(driver, names[i]);
		fusec_cuda_table[i] = f ? f : not_in_driver;
	}
	int (*init)(unsigned) = (int (*)(unsigned))dlsym(driver, "cuInit");
	return init ? init(0) : NOT_FOUND;
}
