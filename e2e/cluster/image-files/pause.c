/* The process that keeps a pod's namespaces open. It ends on SIGTERM, and takes in the orphans of pods whose containers
 * share one process namespace. */
#include <signal.h>
#include <stddef.h>
#include <sys/wait.h>

int main(void) {
  sigset_t awaited;
  sigemptyset(&awaited);
  sigaddset(&awaited, SIGTERM);
  sigaddset(&awaited, SIGINT);
  sigaddset(&awaited, SIGCHLD);
  sigprocmask(SIG_BLOCK, &awaited, NULL);
  for (;;) {
    int received = sigwaitinfo(&awaited, NULL);
    if (received == SIGTERM || received == SIGINT)
      return 0;
    if (received == SIGCHLD)
      while (waitpid(-1, NULL, WNOHANG) > 0)
        continue;
  }
}
