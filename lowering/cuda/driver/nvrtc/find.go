package nvrtc

import "fusec/lowering/cuda/driver/find"

// Variable is the environment variable that names NVRTC's file or its folder.
const Variable = "FUSEC_NVRTC"

// search says where NVRTC is. CUDA 12's library is sufficient except for the newest chips.
var search = find.Search{
	What: "NVRTC, CUDA's run-time compiler", Names: []string{"libnvrtc.so.13", "libnvrtc.so.12"}, Variable: Variable,
	Python: []string{"cu13", "cuda_nvrtc"}, Advice: "install CUDA 12 or 13, or run `make cuda-tools`",
}
