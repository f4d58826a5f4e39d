/* MKL, which PyTorch multiplies f32 with, asks its own function whether the processor is Intel's, and else takes a
   slower path. Preloaded, this answers in its place, so that PyTorch is measured at its best on every machine. */
int mkl_serv_intel_cpu_true(void) { return 1; }
