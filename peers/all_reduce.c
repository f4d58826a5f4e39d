/* MPI's all-reduces, in the names and units of `equipart bench`: a line of JSON for each size, for as many ranks as
   mpirun starts (2 or 4). In place, f32; the best of several bursts, of which the slowest rank's time counts. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { BURSTS = 7 };

/* The time of a call, in microseconds. */
static double best(long bytes, long calls) {
    int count = (int)(bytes / 4);
    float *x = calloc((size_t)count, sizeof *x);
    double least = 1e30;
    if (!x) MPI_Abort(MPI_COMM_WORLD, 1);
    for (int burst = 0; burst <= BURSTS; burst++) { /* the first warms up */
        double seconds, slowest;
        MPI_Barrier(MPI_COMM_WORLD);
        seconds = -MPI_Wtime();
        for (long i = 0; i < calls; i++)
            MPI_Allreduce(MPI_IN_PLACE, x, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        seconds = (seconds + MPI_Wtime()) / (double)calls;
        MPI_Allreduce(&seconds, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
        if (burst && slowest < least) least = slowest;
    }
    free(x);
    return least * 1e6;
}

int main(int argc, char **argv) {
    static const struct { const char *name; long bytes; } SIZES[] = {
        {"4KiB", 4L << 10}, {"256KiB", 256L << 10}, {"4MiB", 4L << 20}, {"64MiB", 64L << 20},
    };
    int rank, ranks;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (ranks != 2 && ranks != 4) {
        if (!rank) fprintf(stderr, "all_reduce: %d ranks; figures are of 2 or 4\n", ranks);
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    for (size_t i = 0; i < sizeof SIZES / sizeof *SIZES; i++) {
        long calls = (28L << 20) / (SIZES[i].bytes * ranks);
        double microseconds = best(SIZES[i].bytes, calls < 1 ? 1 : calls > 3000 ? 3000 : calls);
        if (!rank)
            printf("{\"peer\": \"MPI\", \"name\": \"all_reduce_us_%s%s\", \"value\": %.3f}\n", SIZES[i].name,
                   ranks == 4 ? "_4ranks" : "", microseconds);
    }
    MPI_Finalize();
    return 0;
}
