// All kernels in one code object: a device loads it once.
#include "checksum.hip"
#include "fp8.hip"
#include "outer.hip"
#include "pack.hip"
