/* What the agent is measured against: the same files, and nothing but the system calls.
 *
 *   agent_floor write VALUE < paths     open, read, write, read back each file once; prints the seconds
 *   agent_floor keep VALUE < paths      holds VALUE in each file, by inotify, until it is killed; prints "ready"
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 1024, LONGEST = 512 };

static char paths[MOST][LONGEST];
static int by_watch[8 * MOST];

static void look(const char *path, char *text, size_t size) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = read(fd, text, size - 1);
    text[got > 0 ? got : 0] = 0;
    close(fd);
}

static void put(const char *path, const char *value) {
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, value, strlen(value)) < 0) exit(1);
    close(fd);
}

int main(int count, char **words) {
    char text[64], value[64], line[65536];
    int known = 0;
    if (count != 3) return 2;
    snprintf(value, sizeof value, "%s\n", words[2]);
    while (known < MOST && fgets(paths[known], LONGEST, stdin)) {
        paths[known][strcspn(paths[known], "\n")] = 0;
        known++;
    }
    if (strcmp(words[1], "write") == 0) {
        struct timespec begun, ended;
        clock_gettime(CLOCK_MONOTONIC, &begun);
        for (int each = 0; each < known; each++) {
            look(paths[each], text, sizeof text);
            put(paths[each], value);
            look(paths[each], text, sizeof text);
        }
        clock_gettime(CLOCK_MONOTONIC, &ended);
        printf("%.9f\n", (double)(ended.tv_sec - begun.tv_sec) + (double)(ended.tv_nsec - begun.tv_nsec) / 1e9);
        return 0;
    }
    int notify = inotify_init1(IN_CLOEXEC);
    for (int each = 0; each < known; each++) {
        int watch = inotify_add_watch(notify, paths[each], IN_MODIFY);
        if (watch < 0 || watch >= 8 * MOST) return 1;
        by_watch[watch] = each;
    }
    puts("ready");
    fflush(stdout);
    for (;;) {
        ssize_t got = read(notify, line, sizeof line);
        for (char *at = line; at < line + got;) {
            const struct inotify_event *event = (const struct inotify_event *)at;
            const char *path = paths[by_watch[event->wd]];
            look(path, text, sizeof text);
            if (strcmp(text, value) != 0) {
                put(path, value);
                look(path, text, sizeof text);
            }
            at += sizeof *event + event->len;
        }
    }
}
