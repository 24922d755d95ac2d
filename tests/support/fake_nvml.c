/* A libnvidia-ml.so.1 that does what a control file says: answer, refuse, block, crash, leak, lie, print.

   Built and described by tests/nvml_library.py.  Structures are declared by their binary layout, no header is needed.
   FAKE_NVML_CONTROL names the control file; it is looked at on every call, so replace it by rename.  Without the
   variable there are eight healthy cards and no look, which is what a benchmark wants.
   FAKE_NVML_COUNTS names a file of SLOTS records "key\0...", count: how often what was asked, over all processes.

   One word list a line; CARD is a UUID or *, FUNCTION an exported name or *, the first rule that matches goes first:

     cards UUID...                           in the order of their index; a card's number is its UUID's last digit.
                                             The count follows at once, indices with the next initialisation
     live 1                                  indices follow at once too, under the feet of whoever holds handles
     driver VERSION                          decides which field ids hold thermal time
     build N                                 a process that loaded the library under another N gets 18 from all calls
     unit N                                  steps a second of the clock event counters, 1e9 without it
     mig CARD PLACE GI CI PROFILE UUID       an instance; CARD counts as divided while "value" gives its mode a 1.
                                             Without its line an instance is not found, its handle answers 6
     since SECONDS                           counters start here on CLOCK_MONOTONIC: move it for a reset
     on CARD FUNCTION ACTION [ARG] [every N] only each N-th matching call of this process
     value CARD FUNCTION NUMBER              what the call writes, all its numbers alike
     gpm CARD ID value|code NUMBER           one metric; CARD is the parent's for instances too
     field CARD ID TYPE NUMBER               ID a number or *; TYPE one of d u l q s i h as nvmlValueType_t, or "code"
     event SERIAL CARD TYPE DATA [every N]   delivered once (N times) to each event set, in order; of an instance
                                             as an event of its card that names the instance's two ids
   Actions: code N  block  vfork SECONDS (state D that SIGKILL ends)  outlive PATH (a thread that no
     SIGKILL ends until PATH is gone; why not is written there if the kernel refuses)
     gil SECONDS  sleep MS  segv  abort  leak BYTES  print BYTES  (the last five but segv and abort then go on)  */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { CARDS = 64, RULES = 256, WORD = 96, SLOTS = 4096, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3,
       NOT_FOUND = 6, SHORT = 7, TIMEOUT = 10, LOST = 15, MISMATCH = 18, VERSION = 25 };

struct card { char uuid[WORD], profile[32]; int number; struct card *parent; unsigned place, gi, ci, present; };
struct rule { char kind[8], card[WORD], function[WORD], word[WORD]; char text[WORD]; double number; unsigned every, seen; };
struct value { union { double d; uint32_t u; uint64_t q; int64_t s; int32_t i; uint16_t h; }; };
struct field { uint32_t id, scope; int64_t stamp, latency; uint32_t type, code; struct value value; };
struct sample { uint64_t stamp; struct value value; };
struct slot { char key[56]; uint64_t count; };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct card known[CARDS];   /* every card ever named; a handle is one of these for ever */
static struct card *listed[CARDS], *indexed[CARDS];
static unsigned cards, places, live;
static struct rule rules[RULES];
static unsigned rule_count;
static char driver[WORD] = "590.48.01";
static double since, unit = 1e9;
static long build, build_loaded;
static int initialised;
static struct timespec changed;
static ino_t changed_inode;
static struct slot *slots;

static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec * 1e-9; }

static struct card *card_named(const char *uuid) {
  for (int i = 0; i < CARDS; i++) {
    if (!strcmp(known[i].uuid, uuid)) return &known[i];
    if (!known[i].uuid[0]) {
      snprintf(known[i].uuid, WORD, "%s", uuid);
      known[i].number = uuid[0] ? uuid[strlen(uuid) - 1] - '0' : 0;
      return &known[i];
    }
  }
  return &known[0];
}

static void take_line(char *line) {
  char *w[CARDS + 1] = {0}, *rest = line;
  int n = 0;
  while (n <= CARDS && (w[n] = strsep(&rest, " \t\n"))) if (*w[n]) n++;
  if (!n || *w[0] == '#') return;
  if (!strcmp(w[0], "cards")) {
    for (cards = 0; (int)cards < n - 1; cards++) listed[cards] = card_named(w[cards + 1]);
  } else if (n > 1 && !strcmp(w[0], "driver")) snprintf(driver, WORD, "%s", w[1]);
  else if (n > 1 && !strcmp(w[0], "live")) live = (unsigned)atoi(w[1]);
  else if (n > 1 && !strcmp(w[0], "build")) build = atol(w[1]);
  else if (n > 1 && !strcmp(w[0], "since")) since = atof(w[1]);
  else if (n > 1 && !strcmp(w[0], "unit")) unit = atof(w[1]);
  else if (n > 6 && !strcmp(w[0], "mig")) {
    struct card *part = card_named(w[6]);
    part->parent = card_named(w[1]);
    part->place = (unsigned)atoi(w[2]);
    part->gi = (unsigned)atoi(w[3]);
    part->ci = (unsigned)atoi(w[4]);
    part->present = 1;
    snprintf(part->profile, sizeof part->profile, "%s", w[5]);
  }
  else if (n > 3 && rule_count < RULES) {
    struct rule *r = &rules[rule_count++];
    memset(r, 0, sizeof *r);
    snprintf(r->kind, sizeof r->kind, "%s", w[0]);
    snprintf(r->card, WORD, "%s", w[1]);
    snprintf(r->function, WORD, "%s", w[2]);
    snprintf(r->word, WORD, "%s", w[3]);
    for (int i = 4; i < n; i++)
      if (!strcmp(w[i], "every") && i + 1 < n) r->every = atoi(w[++i]);
      else { snprintf(r->text, WORD, "%s", w[i]); r->number = strtod(w[i], NULL); }
    if (!strcmp(w[0], "value")) r->number = strtod(w[3], NULL);
  }
}

static void defaults(void) {
  char uuid[WORD];
  for (cards = 0; cards < 8; cards++) {
    snprintf(uuid, WORD, "GPU-00000000-0000-0000-0000-00000000000%u", cards);
    listed[cards] = card_named(uuid);
  }
}

/* With the lock held. */
static void refresh(void) {
  static const char *path;
  static int asked;
  struct stat s;
  if (!asked) { asked = 1; path = getenv("FAKE_NVML_CONTROL"); defaults(); }
  if (!path || stat(path, &s)) return;
  if (s.st_ino == changed_inode && !memcmp(&s.st_mtim, &changed, sizeof changed)) return;
  changed = s.st_mtim;
  changed_inode = s.st_ino;
  FILE *f = fopen(path, "re");
  if (!f) return;
  char line[8192];
  rule_count = live = 0;
  since = 0;
  unit = 1e9;
  for (int i = 0; i < CARDS; i++) known[i].present = 0;
  while (fgets(line, sizeof line, f)) take_line(line);
  fclose(f);
}

__attribute__((constructor)) static void loaded(void) {
  pthread_mutex_lock(&lock);
  refresh();
  build_loaded = build;
  const char *path = getenv("FAKE_NVML_COUNTS");
  int fd = path ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600) : -1;
  if (fd >= 0 && !ftruncate(fd, SLOTS * sizeof *slots))
    slots = mmap(NULL, SLOTS * sizeof *slots, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (slots == MAP_FAILED) slots = NULL;
  if (fd >= 0) close(fd);
  pthread_mutex_unlock(&lock);
}

static void count(const struct card *card, const char *what, unsigned id) {
  if (!slots) return;
  char key[sizeof slots->key];
  memset(key, 0, sizeof key);
  int used = card ? snprintf(key, sizeof key, "%d:%s", card->number, what) : snprintf(key, sizeof key, "%s", what);
  if (id && used < (int)sizeof key) snprintf(key + used, sizeof key - used, ":%u", id);
  unsigned hash = 5381;
  for (const char *c = key; *c; c++) hash = hash * 33 + (unsigned char)*c;
  for (int i = 0; i < SLOTS; i++) {
    struct slot *slot = &slots[(hash + i) % SLOTS];
    if (!slot->key[0]) memcpy(slot->key, key, sizeof key);
    if (!memcmp(slot->key, key, sizeof key)) { slot->count++; return; }
  }
}

/* With the lock held: the next rule from *place on that is about this call. */
static struct rule *next_rule(const char *kind, const struct card *card, const char *function, unsigned *place) {
  while (*place < rule_count) {
    struct rule *r = &rules[(*place)++];
    if (strcmp(r->kind, kind)) continue;
    if (strcmp(r->card, "*") && (!card || strcmp(r->card, card->uuid))) continue;
    if (strcmp(r->function, "*") && strcmp(r->function, function)) continue;
    return r;
  }
  return NULL;
}

static int still_blocked(const struct card *card, const char *function) {
  pthread_mutex_lock(&lock);
  refresh();
  unsigned place = 0;
  struct rule *r;
  while ((r = next_rule("on", card, function, &place)) && strcmp(r->word, "block")) {}
  pthread_mutex_unlock(&lock);
  return r != NULL;
}

static void hold_interpreter(double seconds) {
  int (*ensure)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "PyGILState_Ensure");
  void (*release)(int) = (void (*)(int))dlsym(RTLD_DEFAULT, "PyGILState_Release");
  if (!ensure || !release) return;
  int state = ensure();
  usleep((useconds_t)(seconds * 1e6));
  release(state);
}

static void print(int fd, char letter, size_t bytes) {
  char line[1024];
  memset(line, letter, sizeof line);
  line[sizeof line - 1] = '\n';
  for (; bytes; bytes -= bytes < sizeof line ? bytes : sizeof line)
    if (write(fd, line, bytes < sizeof line ? bytes : sizeof line) < 0) return;
}

/* Holds the calling thread beyond SIGKILL: a child outside the process group stops it on its way out.  To whoever waits
   for the process this is a call that the kernel cannot interrupt: a dead leader, a thread that stays, open files.
   It needs no privilege, as the thread lets itself be traced. */
static void outlive(const char *path) {
  pid_t thread = gettid();
  prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
  if (fork() == 0) {
    int refused = setsid() < 0 || ptrace(PTRACE_SEIZE, thread, NULL, PTRACE_O_TRACEEXIT);
    const char *why = strerrorname_np(errno);
    close_range(0, ~0u, 0);
    int fd = refused ? open(path, O_WRONLY) : -1;
    if (fd >= 0 && write(fd, why, strlen(why)) < 0) _exit(1);
    /* For ten minutes at most, lest it outlive a test run that was ended. */
    for (int i = 0; !refused && i < 30000 && !access(path, F_OK); i++) usleep(20000);
    _exit(refused);  /* with the tracer goes the hold */
  }
  while (!access(path, F_OK)) usleep(20000);
}

/* Returns the code to answer with, or -1 to go on. */
static int act(const struct rule *r, const struct card *card, const char *function) {
  const char *what = r->word;
  if (!strcmp(what, "code")) return (int)r->number;
  if (!strcmp(what, "block")) while (still_blocked(card, function)) usleep(20000);
  else if (!strcmp(what, "vfork")) { if (!vfork()) { usleep((useconds_t)(r->number * 1e6)); _exit(0); } }
  else if (!strcmp(what, "outlive")) outlive(r->text);
  else if (!strcmp(what, "gil")) hold_interpreter(r->number);
  else if (!strcmp(what, "sleep")) usleep((useconds_t)(r->number * 1e3));
  else if (!strcmp(what, "segv")) raise(SIGSEGV);
  else if (!strcmp(what, "abort")) abort();
  else if (!strcmp(what, "leak")) {
    static void *volatile leaked;  /* an allocation that nobody keeps would be optimised away */
    leaked = malloc((size_t)r->number);
    if (leaked) memset(leaked, 1, (size_t)r->number);
  }
  else if (!strcmp(what, "print")) {
    print(1, 'x', (size_t)r->number);
    print(2, 'y', (size_t)r->number);
    printf("said through stdio\n");
    fflush(stdout);
  }
  return -1;
}

/* What every exported function does first: count, obey, and check what a driver checks. */
static int enter(const struct card *card, const char *function) {
  struct rule todo[8];
  int n = 0, code = 0;
  pthread_mutex_lock(&lock);
  refresh();
  count(card, function, 0);
  unsigned place = 0;
  struct rule *r;
  while (n < 8 && (r = next_rule("on", card, function, &place)))
    if (!r->every || ++r->seen % r->every == 0) todo[n++] = *r;
  if (build != build_loaded) code = MISMATCH;
  else if (!initialised && !strstr(function, "Init")) code = UNINITIALIZED;
  else if (card) {
    const struct card *whole = card->parent ? card->parent : card;
    code = LOST;
    for (unsigned i = 0; i < cards; i++) if (listed[i] == whole) code = 0;
    if (!code && card->parent && !card->present) code = NOT_FOUND;
  }
  pthread_mutex_unlock(&lock);
  for (int i = 0; i < n; i++) {
    int answer = act(&todo[i], card, function);
    if (answer >= 0) return answer;
  }
  return code;
}

static uint64_t whole(double number) { return number < 0 ? (uint64_t)(int64_t)number : (uint64_t)number; }

static uint64_t number(const struct card *card, const char *function, double normally) {
  unsigned place = 0;
  pthread_mutex_lock(&lock);
  struct rule *r = next_rule("value", card, function, &place);
  double chosen = r ? r->number : normally;
  pthread_mutex_unlock(&lock);
  return whole(chosen);
}

#define ENTER(card) do { int code_ = enter(card, __func__); if (code_) return code_; } while (0)
#define N(value) number(card, __func__, value)
#define ONE(name, type, value) \
  int name(struct card *card, type *out) { ENTER(card); *out = (type)N(value); return 0; }
#define BY_KIND(name, type, value) \
  int name(struct card *card, unsigned kind, type *out) { (void)kind; ENTER(card); *out = (type)N(value); return 0; }
#define TEXT(name, ...) \
  int name(struct card *card, char *out, unsigned size) { ENTER(card); snprintf(out, size, __VA_ARGS__); return 0; }

static int start(const char *function) {
  int code = enter(NULL, function);
  if (code) return code;
  pthread_mutex_lock(&lock);
  if (!initialised++) { memcpy(indexed, listed, sizeof listed); places = cards; }
  pthread_mutex_unlock(&lock);
  return 0;
}
int nvmlInitWithFlags(unsigned flags) { (void)flags; return start(__func__); }
int nvmlInit_v2(void) { return start(__func__); }
int nvmlShutdown(void) {
  ENTER(NULL);
  pthread_mutex_lock(&lock);
  if (initialised) initialised--;
  pthread_mutex_unlock(&lock);
  return 0;
}
int nvmlSystemGetDriverVersion(char *out, unsigned size) { ENTER(NULL); snprintf(out, size, "%s", driver); return 0; }
int nvmlSystemGetNVMLVersion(char *out, unsigned size) { ENTER(NULL); snprintf(out, size, "13.%s", driver); return 0; }
int nvmlSystemGetCudaDriverVersion(int *out) { ENTER(NULL); *out = 13010; return 0; }
int nvmlDeviceGetCount_v2(unsigned *out) { struct card *card = NULL; ENTER(NULL); *out = (unsigned)N(cards); return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct card **out) {
  pthread_mutex_lock(&lock);
  refresh();
  struct card *card = live ? (index < cards ? listed[index] : NULL) : index < places ? indexed[index] : NULL;
  pthread_mutex_unlock(&lock);
  ENTER(card);
  *out = card;
  return card ? 0 : INVALID;
}

/* ---- facts */

TEXT(nvmlDeviceGetUUID, "%s", card->uuid)
TEXT(nvmlDeviceGetName, card->parent ? "Fake H200 MIG %s" : "Fake H200", card->profile)
TEXT(nvmlDeviceGetSerial, "165%010d", card->number)
TEXT(nvmlDeviceGetVbiosVersion, "96.00.BC.00.01")
int nvmlDeviceGetGspFirmwareVersion(struct card *card, char *out) { ENTER(card); strcpy(out, "590.48.01"); return 0; }
ONE(nvmlDeviceGetPersistenceMode, unsigned, 1)
ONE(nvmlDeviceGetComputeMode, unsigned, 0)
ONE(nvmlDeviceGetNumaNodeId, int, card->number / 4)
struct pci { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; };
int nvmlDeviceGetPciInfo_v3(struct card *card, struct pci *out) {
  ENTER(card);
  memset(out, 0, sizeof *out);
  snprintf(out->bus_id, sizeof out->bus_id, "00000000:%02X:00.0", (unsigned)card->number & 0xff);
  return 0;
}
int nvmlDeviceGetMemoryAffinity(struct card *card, unsigned words, unsigned long *out, unsigned scope) {
  (void)scope;
  ENTER(card);
  memset(out, 0, words * sizeof *out);
  out[0] = 1ul << card->number / 4;
  return 0;
}
int nvmlDeviceGetMigMode(struct card *card, unsigned *current, unsigned *pending) {
  ENTER(card);
  *current = *pending = (unsigned)N(0);
  return 0;
}

/* ---- instances of a divided card */

ONE(nvmlDeviceGetMaxMigDeviceCount, unsigned, 7)
int nvmlDeviceGetMigDeviceHandleByIndex(struct card *card, unsigned index, struct card **out) {
  ENTER(card);
  for (int i = 0; i < CARDS; i++)
    if (known[i].present && known[i].parent == card && known[i].place == index) { *out = &known[i]; return 0; }
  return NOT_FOUND;
}
int nvmlDeviceGetGpuInstanceId(struct card *card, unsigned *out) { ENTER(card); *out = card->gi; return card->parent ? 0 : NOT_SUPPORTED; }
int nvmlDeviceGetComputeInstanceId(struct card *card, unsigned *out) { ENTER(card); *out = card->ci; return card->parent ? 0 : NOT_SUPPORTED; }

/* ---- what changes: each figure tells its card, so that a figure under another card's name is seen */

ONE(nvmlDeviceGetPowerUsage, unsigned, 300000 + 1000 * card->number)
ONE(nvmlDeviceGetEnforcedPowerLimit, unsigned, 700000)
ONE(nvmlDeviceGetPowerManagementLimit, unsigned, 650000)
ONE(nvmlDeviceGetPowerManagementDefaultLimit, unsigned, 700000)
ONE(nvmlDeviceGetTotalEnergyConsumption, uint64_t, (now() - since) * 300000)
ONE(nvmlDeviceGetPerformanceState, unsigned, 0)
ONE(nvmlDeviceGetCurrentClocksEventReasons, uint64_t, 0x24)
ONE(nvmlDeviceGetCurrentClocksThrottleReasons, uint64_t, 0x24)
ONE(nvmlDeviceGetCurrPcieLinkGeneration, unsigned, 5)
ONE(nvmlDeviceGetCurrPcieLinkWidth, unsigned, 16)
ONE(nvmlDeviceGetMaxPcieLinkGeneration, unsigned, 5)
ONE(nvmlDeviceGetMaxPcieLinkWidth, unsigned, 16)
ONE(nvmlDeviceGetPcieReplayCounter, unsigned, 3)
ONE(nvmlDeviceGetNumFans, unsigned, 0)
ONE(nvmlDeviceGetFanSpeed, unsigned, 40)
BY_KIND(nvmlDeviceGetFanSpeed_v2, unsigned, 40)
BY_KIND(nvmlDeviceGetTemperature, unsigned, 40 + card->number)
BY_KIND(nvmlDeviceGetTemperatureThreshold, unsigned, 95 - kind)
BY_KIND(nvmlDeviceGetClockInfo, unsigned, 1000 + 100 * kind)
BY_KIND(nvmlDeviceGetMaxClockInfo, unsigned, 2000 + 100 * kind)

/* "value CARD linkN 0" takes one link down. */
int nvmlDeviceGetNvLinkState(struct card *card, unsigned link, unsigned *out) {
  char name[16];
  ENTER(card);
  snprintf(name, sizeof name, "link%u", link);
  *out = (unsigned)number(card, name, (double)N(1));
  return 0;
}

struct temperature { unsigned version, sensor; int degrees; };
int nvmlDeviceGetTemperatureV(struct card *card, struct temperature *out) {
  ENTER(card);
  out->degrees = (int)N(40 + card->number);
  return 0;
}
struct margin { unsigned version; int degrees; };
int nvmlDeviceGetMarginTemperature(struct card *card, struct margin *out) {
  ENTER(card);
  out->degrees = (int)N(47 - card->number);
  return 0;
}
struct rates { unsigned gpu, memory; };
int nvmlDeviceGetUtilizationRates(struct card *card, struct rates *out) {
  ENTER(card);
  out->gpu = (unsigned)N(50 + card->number);
  out->memory = (unsigned)N(20);
  return 0;
}
static int coder(struct card *card, const char *function, unsigned *out, unsigned *period) {
  int code = enter(card, function);
  if (code) return code;
  *out = (unsigned)number(card, function, 3);
  *period = 1000000;
  return 0;
}
int nvmlDeviceGetEncoderUtilization(struct card *card, unsigned *out, unsigned *us) { return coder(card, __func__, out, us); }
int nvmlDeviceGetDecoderUtilization(struct card *card, unsigned *out, unsigned *us) { return coder(card, __func__, out, us); }

struct memory { uint64_t total, free, used; };
int nvmlDeviceGetMemoryInfo(struct card *card, struct memory *out) {
  ENTER(card);
  out->total = N(141e9);
  out->used = N((30 + card->number) * 1e9);
  out->free = N((111 - card->number) * 1e9);
  return 0;
}
struct memory2 { unsigned version; uint64_t total, reserved, free, used; };
int nvmlDeviceGetMemoryInfo_v2(struct card *card, struct memory2 *out) {
  ENTER(card);
  out->total = N(141e9);
  out->reserved = N(1e9);
  out->used = N((30 + card->number) * 1e9);
  out->free = N((110 - card->number) * 1e9);
  return 0;
}

int nvmlDeviceGetPowerManagementLimitConstraints(struct card *card, unsigned *least, unsigned *most) {
  ENTER(card);
  *least = (unsigned)N(200000);
  *most = (unsigned)N(700000);
  return 0;
}
int nvmlDeviceGetRetiredPagesPendingStatus(struct card *card, unsigned *out) {
  ENTER(card);
  *out = (unsigned)N(0);
  return 0;
}
struct bar1 { uint64_t total, free, used; };
int nvmlDeviceGetBAR1MemoryInfo(struct card *card, struct bar1 *out) {
  ENTER(card);
  out->total = N(137438953472.0);
  out->used = N(4194304);
  out->free = N(137434759168.0);
  return 0;
}
/* One feature, the vGPU's (code 1), of a card that needs a licence when "value CARD grid 1" says so: state 1. */
struct expiry { uint32_t year; uint16_t month, day, hour, min, sec; uint8_t status; };
struct feature { unsigned code, state; char info[128], product[128]; unsigned enabled; struct expiry expiry; };
struct features { int supported; unsigned size; struct feature of[3]; };
int nvmlDeviceGetGridLicensableFeatures_v4(struct card *card, struct features *out) {
  ENTER(card);
  memset(out, 0, sizeof *out);
  out->supported = (int)number(card, "grid", 0);
  out->size = 1;
  out->of[0].code = 1;
  out->of[0].state = (unsigned)N(1);
  return 0;
}

/* A buffer of 120 samples, 20 ms apart, of unsigned numbers. */
int nvmlDeviceGetSamples(struct card *card, unsigned kind, uint64_t last, unsigned *type, unsigned *size, struct sample *out) {
  ENTER(card);
  if (kind < 1 || kind > 4) return NOT_SUPPORTED;
  uint64_t newest = (uint64_t)(now() * 50), held = 120, after = last / 20000;
  *type = 1;
  if (newest <= after) return NOT_FOUND;
  if (newest - after < held) held = newest - after;
  if (out) {
    if (*size < held) held = *size;
    for (unsigned i = 0; i < held; i++) {
      out[i].stamp = (newest - held + 1 + i) * 20000;
      out[i].value.q = 0;
      out[i].value.u = (unsigned)N(kind == 1 ? 50 + card->number : 20);
    }
  }
  *size = (unsigned)held;
  return 0;
}
int nvmlDeviceGetTotalEccErrors(struct card *card, unsigned error, unsigned scope, uint64_t *out) {
  ENTER(card);
  *out = N(error * 10 + scope);
  return 0;
}
int nvmlDeviceGetRemappedRows(struct card *card, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
  ENTER(card);
  *corrected = (unsigned)N(1);
  *uncorrected = (unsigned)N(2);
  *pending = *failed = (unsigned)N(0);
  return 0;
}
int nvmlDeviceGetRetiredPages(struct card *card, unsigned cause, unsigned *size, uint64_t *out) {
  (void)cause; (void)out;
  ENTER(card);
  *size = 0;
  return 0;
}
struct process { unsigned pid; uint64_t memory; unsigned instance, compute; };
int nvmlDeviceGetComputeRunningProcesses_v3(struct card *card, unsigned *size, struct process *out) {
  ENTER(card);
  if (!out || *size < 1) { *size = 1; return SHORT; }
  *size = 1;
  *out = (struct process){.pid = (unsigned)N(1), .memory = N(30e9), .instance = ~0u, .compute = ~0u};
  return 0;
}
/* "value CARD fabric_version 2" plays a driver that does not know the third version of the structure. */
struct fabric { unsigned version; uint8_t cluster[16]; unsigned status, clique, state, health; uint8_t summary; };
int nvmlDeviceGetGpuFabricInfoV(struct card *card, struct fabric *out) {
  ENTER(card);
  if (out->version >> 24 > number(card, "fabric_version", 3)) return VERSION;
  if (out->version >> 24 == 3) out->summary = (uint8_t)number(card, "fabric_summary", 1);
  out->state = (unsigned)N(3);
  out->status = (unsigned)number(card, "fabric_status", 0);
  out->health = (unsigned)number(card, "fabric_health", 0);
  return 0;
}

/* ---- how cards are joined: four behind each socket, all links to switches; the rules' card is the first of a pair */

int nvmlDeviceGetTopologyCommonAncestor(struct card *card, struct card *other, unsigned *out) {
  ENTER(card);
  *out = (unsigned)N(card->number / 4 == other->number / 4 ? 40 : 50);
  return 0;
}
int nvmlDeviceGetP2PStatus(struct card *card, struct card *other, unsigned capability, unsigned *out) {
  char name[16];
  (void)other;
  ENTER(card);
  snprintf(name, sizeof name, "p2p%u", capability);
  *out = (unsigned)number(card, name, (double)N(0));
  return 0;
}
BY_KIND(nvmlDeviceGetNvLinkRemoteDeviceType, unsigned, 2)
int nvmlDeviceGetNvLinkRemotePciInfo_v2(struct card *card, unsigned link, struct pci *out) {
  ENTER(card);
  memset(out, 0, sizeof *out);
  snprintf(out->bus_id, sizeof out->bus_id, "00000000:%02X:00.0", (unsigned)N(0xc0 + link % 4) & 0xff);
  return 0;
}

/* ---- fields */

static int natural(const struct card *card, struct field *f) {
  double t = now() - since;
  int major = atoi(driver), minor = strchr(driver, '.') ? atoi(strchr(driver, '.') + 1) : 0;
  unsigned thermal = major < 575 ? 0 : major > 580 || (major == 580 && minor >= 82) ? 269 : 251;
  f->type = 3;
  if (thermal && f->id >= thermal && f->id < thermal + 3) { f->value.q = f->id == thermal ? (uint64_t)(t * unit) : 0; return 0; }
  if (f->id == 251 && (thermal != 251)) { f->type = 1; f->value.u = 1; return 0; }  /* power smoothing is on */
  switch (f->id) {
    case 3: case 4: case 5: case 6: f->value.q = f->id; return 0;
    case 29: case 30: case 31: case 38: case 45: case 94: case 144: case 145: case 230: return 0;
    case 75: case 76: case 77: case 78: case 79: return 0;
    case 74: f->value.q = (uint64_t)(t * unit); return 0;
    case 82: f->type = 1; f->value.u = 60 + (unsigned)card->number; return 0;
    case 83: f->value.q = (uint64_t)(t * 300000); return 0;
    case 91: f->type = 1; f->value.u = 18; return 0;
    case 142: case 143: f->type = 1; f->value.u = 1; return 0;
    case 185: case 186: f->type = 1; f->value.u = 300000 + 1000 * (unsigned)card->number; return 0;
    case 197: case 198: case 138: case 139: f->value.q = (uint64_t)(t * 1e6); return 0;
    case 161: case 162: case 163: return 0;
    default: return NOT_SUPPORTED;
  }
}

static int told(const struct card *card, struct field *f) {
  char id[16];
  unsigned place = 0;
  snprintf(id, sizeof id, "%u", f->id);
  struct rule *r = next_rule("field", card, id, &place);
  if (!r) return -1;
  if (!strcmp(r->word, "code")) return (int)r->number;
  const char *types = "dulqsih", *at = strchr(types, r->word[0]);
  f->type = at ? (unsigned)(at - types) : 99;
  switch (r->word[0]) {
    case 'd': f->value.d = r->number; break;
    case 'u': f->value.u = (uint32_t)whole(r->number); break;
    case 's': f->value.s = (int64_t)r->number; break;
    case 'i': f->value.i = (int32_t)r->number; break;
    case 'h': f->value.h = (uint16_t)whole(r->number); break;
    default: f->value.q = whole(r->number);
  }
  return 0;
}

int nvmlDeviceGetFieldValues(struct card *card, int size, struct field *fields) {
  ENTER(card);
  pthread_mutex_lock(&lock);
  for (struct field *f = fields; f < fields + size; f++) {
    count(card, "field", f->id);
    f->stamp = (int64_t)(now() * 1e6);
    f->latency = 1;
    f->value.q = 0;
    int code = told(card, f);
    f->code = (uint32_t)(code >= 0 ? code : natural(card, f));
  }
  pthread_mutex_unlock(&lock);
  return 0;
}

/* ---- events: XIDs and the like, from "event" lines; a set delivers those of its cards that it has not delivered */

struct set { double last; unsigned size, times; struct card *cards[CARDS]; };
struct event { struct card *card; uint64_t type, data; unsigned instance, compute; };
static struct card *whole_of(struct card *card) { return card->parent ? card->parent : card; }
int nvmlEventSetCreate(struct set **out) { ENTER(NULL); *out = calloc(1, sizeof **out); return 0; }
int nvmlEventSetFree(struct set *set) { ENTER(NULL); free(set); return 0; }
ONE(nvmlDeviceGetSupportedEventTypes, uint64_t, 0xd88f)
int nvmlDeviceRegisterEvents(struct card *card, uint64_t types, struct set *set) {
  (void)types;
  ENTER(card);
  if (set->size < CARDS) set->cards[set->size++] = card;
  return 0;
}
int nvmlEventSetWait_v2(struct set *set, struct event *out, unsigned ms) {
  ENTER(NULL);
  int idle = !getenv("FAKE_NVML_CONTROL");  /* no events: wait as a driver does, without a look in between */
  for (double until = now() + ms * 1e-3;; usleep(idle ? ms * 1000 : 2000)) {
    pthread_mutex_lock(&lock);
    refresh();
    struct rule *first = NULL;
    for (unsigned i = 0; i < rule_count; i++) {
      struct rule *r = &rules[i];
      if (!strcmp(r->kind, "event") && atof(r->card) > set->last && (!first || atof(r->card) < atof(first->card)))
        for (unsigned c = 0; c < set->size; c++) if (set->cards[c] == whole_of(card_named(r->function))) first = r;
    }
    if (first) {
      if (++set->times >= (first->every ? first->every : 1)) { set->last = atof(first->card); set->times = 0; }
      struct card *it = card_named(first->function);
      *out = (struct event){whole_of(it), (uint64_t)strtoull(first->word, NULL, 0), whole(first->number),
                            it->parent ? it->gi : ~0u, it->parent ? it->ci : ~0u};
    }
    pthread_mutex_unlock(&lock);
    if (first) return 0;
    if (now() >= until) return TIMEOUT;
  }
}

/* ---- profiling: a metric's value is its id, out of 100 (an instance's is its GPU instance), unless "value CARD
   nvmlGpmMetricsGet" or "gpm" says otherwise.  Calls that overlap are counted as gpm_overlap, buffers in use as what
   was allocated and not freed. */

struct gpm_sample { struct card *card; double at; unsigned gi; };
struct gpm_metric { unsigned id, code; double value; const char *name, *long_name, *unit; };
struct gpm { unsigned version, size; struct gpm_sample *first, *second; struct gpm_metric metrics[]; };
struct gpm_support { unsigned version, supported; };

static int inside;
static void left(int *unused) { (void)unused; __atomic_sub_fetch(&inside, 1, __ATOMIC_SEQ_CST); }
static int enter_alone(const struct card *card, const char *function) {
  if (__atomic_add_fetch(&inside, 1, __ATOMIC_SEQ_CST) > 1) {
    pthread_mutex_lock(&lock);
    count(NULL, "gpm_overlap", 0);
    pthread_mutex_unlock(&lock);
  }
  return enter(card, function);
}
#define ALONE(card) \
  int alone_ __attribute__((cleanup(left), unused)) = 0; \
  do { int code_ = enter_alone(card, __func__); if (code_) return code_; } while (0)

int nvmlGpmQueryDeviceSupport(struct card *card, struct gpm_support *out) { ALONE(card); out->supported = (unsigned)N(1); return 0; }
int nvmlGpmSampleAlloc(struct gpm_sample **out) { ALONE(NULL); *out = calloc(1, sizeof **out); return 0; }
int nvmlGpmSampleFree(struct gpm_sample *sample) { ALONE(NULL); free(sample); return 0; }
static int sampled(struct card *card, unsigned gi, struct gpm_sample *sample) {
  sample->card = card;
  sample->gi = gi;
  sample->at = now();
  return 0;
}
int nvmlGpmSampleGet(struct card *card, struct gpm_sample *sample) { ALONE(card); return sampled(card, ~0u, sample); }
int nvmlGpmMigSampleGet(struct card *card, unsigned gi, struct gpm_sample *sample) { ALONE(card); return sampled(card, gi, sample); }
int nvmlGpmMetricsGet(struct gpm *gpm) {
  struct card *card = gpm->first ? gpm->first->card : NULL;
  ALONE(card);
  pthread_mutex_lock(&lock);
  unsigned place = 0;
  struct rule *all = next_rule("value", card, __func__, &place);
  for (unsigned i = 0; i < gpm->size; i++) {
    struct gpm_metric *m = &gpm->metrics[i];
    char id[16];
    snprintf(id, sizeof id, "%u", m->id);
    count(card, "gpm", m->id);
    place = 0;
    struct rule *r = next_rule("gpm", card, id, &place);
    m->code = gpm->second && gpm->second->at - gpm->first->at >= 0.1 ? 0 : INVALID;
    m->value = gpm->first->gi != ~0u ? gpm->first->gi : m->id % 100;
    if (all) m->value = all->number;
    if (r && !strcmp(r->word, "code")) m->code = (unsigned)r->number;
    else if (r) m->value = r->number;
  }
  pthread_mutex_unlock(&lock);
  return 0;
}
