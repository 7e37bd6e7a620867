/* Slow moments: when this machine computes at less than a third of its speed, whatever runs on it.
 *
 * Every millisecond a short loop of arithmetic that touches no memory; a shared machine's clock may be
 * lowered, or its time be given to others, for milliseconds at a time.
 *
 *   slow_moments SECONDS
 *
 * Prints the moments, CLOCK_MONOTONIC nanoseconds, one a line.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static volatile unsigned long kept;

static long now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000 + now.tv_nsec;
}

static long loop_ns(void) {
    long begin_ns = now_ns();
    unsigned long x = 1;
    for (int i = 0; i < 10000; i++) x = x * 6364136223846793005UL + 1;
    kept = x;
    return now_ns() - begin_ns;
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: slow_moments SECONDS\n");
        return 2;
    }
    long end_ns = now_ns() + (long)(atof(argv[1]) * 1e9), best_ns = loop_ns();
    while (now_ns() < end_ns) {
        long begin_ns = now_ns(), took_ns = loop_ns();
        if (took_ns < best_ns) best_ns = took_ns;
        if (took_ns > 3 * best_ns) {
            printf("%ld\n", begin_ns);
            fflush(stdout); /* it may be ended at any time */
        }
        usleep(1000);
    }
    return 0;
}
