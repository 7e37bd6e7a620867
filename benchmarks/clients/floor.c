/* The floor: what reading these streams costs when nothing is done with the bytes.
 *
 * epoll, recvmsg with kernel stamps, 64 KiB reads, every byte thrown away; a response ends at its
 * last chunk ("0\r\n\r\n") and the slot sends its next request at once: closed loop, loopback only.
 * With REQUESTS_PER_S request i is sent i / REQUESTS_PER_S after the start instead, or once a slot is free.
 *
 *   floor PORT STREAMS REQUESTS INPUT_TOKENS OUTPUT_TOKENS [REQUESTS_PER_S]
 *
 * Prints one JSON line: CPU seconds (user, system), wall seconds, when it started (CLOCK_MONOTONIC), reads,
 * bytes.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static char request[1 << 20];
static size_t request_bytes;
static long issued, requests, begin_ns, gap_ns;

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static void build_request(long in, long out) {
    static char body[1 << 19];
    size_t n = (size_t)sprintf(body, "{\"model\":\"null\",\"prompt\":[");
    for (long i = 0; i < in; i++) n += (size_t)sprintf(body + n, i ? ",%ld" : "%ld", 1000 + i % 4000);
    n += (size_t)sprintf(body + n,
                         "],\"max_tokens\":%ld,\"ignore_eos\":true,\"stream\":true,"
                         "\"stream_options\":{\"include_usage\":true}}",
                         out);
    request_bytes = (size_t)sprintf(request,
                                    "POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\n"
                                    "content-type: application/json\r\ncontent-length: %zu\r\n\r\n%s",
                                    n, body);
}

static int send_next(int fd) {
    if (issued >= requests) return 0;
    issued++;
    if (write(fd, request, request_bytes) != (ssize_t)request_bytes) fail("write");
    return 1;
}

static int dial(int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((unsigned short)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int one = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address)) fail("connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPNS, &one, sizeof one);
    return fd;
}

static long now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Sends what is due to the free slots; returns how many ms may be slept, of which the last is spun. */
static int send_due(int *free_fds, long *free_count, long *open_requests) {
    while (issued < requests && *free_count > 0) {
        long wait_ns = begin_ns + issued * gap_ns - now_ns();
        if (wait_ns > 0) return (int)(wait_ns / 1000000);
        *open_requests += send_next(free_fds[--*free_count]);
    }
    return -1;
}

static double seconds(struct timeval t) { return (double)t.tv_sec + (double)t.tv_usec / 1e6; }

int main(int argc, char **argv) {
    if (argc != 6 && argc != 7) {
        fprintf(stderr, "usage: floor PORT STREAMS REQUESTS INPUT_TOKENS OUTPUT_TOKENS [REQUESTS_PER_S]\n");
        return 2;
    }
    int port = atoi(argv[1]);
    long streams = atol(argv[2]);
    requests = atol(argv[3]);
    build_request(atol(argv[4]), atol(argv[5]));

    if (argc == 7) gap_ns = (long)(1e9 / atof(argv[6]));
    long began_ns = now_ns();
    int poll = epoll_create1(0);
    int *fds = malloc((size_t)streams * sizeof *fds);
    for (long i = 0; i < streams; i++) {
        fds[i] = dial(port);
        struct epoll_event event = {.events = EPOLLIN, .data.fd = fds[i]};
        if (epoll_ctl(poll, EPOLL_CTL_ADD, fds[i], &event)) fail("epoll_ctl");
    }
    long open_requests = 0, reads = 0, bytes = 0, free_count = streams; /* the first of fds are free */
    if (gap_ns)
        begin_ns = now_ns();
    else
        while (free_count > 0) open_requests += send_next(fds[--free_count]);

    static char buffer[65536], control[256];
    static struct epoll_event events[4096];
    while (open_requests > 0 || issued < requests) {
        int n = epoll_wait(poll, events, 4096, gap_ns ? send_due(fds, &free_count, &open_requests) : -1);
        for (int i = 0; i < n; i++) {
            struct iovec part = {buffer, sizeof buffer};
            struct msghdr message = {
                .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
            ssize_t got = recvmsg(events[i].data.fd, &message, 0);
            if (got <= 0) fail("recvmsg");
            reads++;
            bytes += got;
            if (got >= 5 && !memcmp(buffer + got - 5, "0\r\n\r\n", 5)) {
                open_requests--;
                if (gap_ns)
                    fds[free_count++] = events[i].data.fd;
                else
                    open_requests += send_next(events[i].data.fd);
            }
        }
    }
    double wall_s = (double)(now_ns() - began_ns) / 1e9;
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    printf("{\"user_s\":%.4f,\"system_s\":%.4f,\"cpu_s\":%.4f,\"wall_s\":%.4f,\"begin_ns\":%ld,\"reads\":%ld,"
           "\"bytes\":%ld}\n",
           seconds(usage.ru_utime), seconds(usage.ru_stime), seconds(usage.ru_utime) + seconds(usage.ru_stime),
           wall_s, begin_ns, reads, bytes);
    return 0;
}
