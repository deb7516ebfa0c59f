#!/bin/sh
# with-cuda.sh COMMAND...: runs a command, such as `go build -tags gpu ./cmd/fusec`, with what cgo needs to build
# against CUDA 12 or 13. Only CUDA's header is needed, neither a GPU nor its driver: the program finds that when it
# runs.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
out=$here/../../../../bin/cuda
tools=${XDG_CACHE_HOME:-$HOME/.cache}/fusec-cuda/pip

header=
searched=
for dir in ${CUDA_PATH:+"$CUDA_PATH/include"} /usr/local/cuda/include /usr/local/cuda-13*/include \
	/usr/local/cuda-12*/include /opt/cuda/include /usr/include "$tools/nvidia/cu13/include"; do
	searched="$searched $dir"
	if [ -z "$header" ] && [ -f "$dir/cuda.h" ]; then header=$dir/cuda.h; fi
done
if [ -z "$header" ]; then
	echo "no cuda.h in$searched" >&2
	echo "install CUDA 12 or 13, or set CUDA_PATH to its folder, or run: make cuda-tools" >&2
	exit 1
fi
version=$(sed -n 's/^#define CUDA_VERSION  *\([0-9]*\).*/\1/p' "$header")
if [ "${version:-0}" -lt 12000 ]; then
	echo "$header is of CUDA ${version:-of an unknown version}, want 12 or 13" >&2
	exit 1
fi
cc=${CC:-gcc}
for tool in "$cc" ar; do
	command -v "$tool" >/dev/null || { echo "$tool is missing: cgo needs a C compiler and binutils" >&2; exit 1; }
done

# The library of jumps, made again when the header or its source is newer.
mkdir -p "$out"
if [ ! "$out/libcuda.a" -nt "$header" ] || [ ! "$out/libcuda.a" -nt "$here/forward/forward.c" ] ||
	[ "$(cat "$out/header" 2>/dev/null)" != "$header" ]; then
	tmp=$(mktemp -d "$out/tmp.XXXXXX")
	trap 'rm -rf "$tmp"' EXIT
	grep -oE '\<cu[A-Z][A-Za-z0-9_]*' "$header" | sort -u | grep -vx cuInit |
		awk '{ printf "FUNCTION(%d, %s)\n", NR - 1, $0 }' >"$tmp/names.h"
	"$cc" -O2 -fPIC -Wall -Werror -I"$tmp" -c "$here/forward/forward.c" -o "$tmp/forward.o"
	ar rc "$tmp/libcuda.a" "$tmp/forward.o"
	mv "$tmp/libcuda.a" "$out/libcuda.a"
	echo "$header" >"$out/header"
	rm -rf "$tmp"
	trap - EXIT
fi

out=$(cd "$out" && pwd)
export CGO_ENABLED=1
export CGO_CFLAGS="-O2 -g -I$here/include -I$(dirname "$header") ${CGO_CFLAGS:-}"
export CGO_LDFLAGS="-L$out -lcuda -ldl ${CGO_LDFLAGS:-}"
exec "$@"
