/* A pretend libnvidia-ml.so.1: as much of NVML as the exporter asks, answered from a text file.
 *
 * In: the file named by FAKE_NVML_STATE (tests/fakes/nvml/fake.py writes it). Every call looks at it again, and parses it anew when it
 * changed, so a test changes a value and the next call tells it. No such file is no driver. Out: what the real library would answer,
 * with its sizes, its errors and its habits; or any error and delay that the file asks for, by call and device.
 * Invariant: a handle is a number and not an address, so none dangles when the file changes underneath.
 *
 * Lines (one blank between words, a name with blanks comes last):
 *   driver VERSION
 *   error CALL TARGET CODE TIMES          TIMES < 0: always. CODE 0: says success and does nothing. TARGET: *, 0 (a device), 0.2 (its slot 2)
 *   delay CALL TARGET MILLISECONDS
 *   device UUID MINOR PCI COMPUTE_MODE MIG LOST UTIL TOTAL USED MILLIWATTS CELSIUS MILLIJOULES SLOTS GPM NAME       MIG: -1 has none, 0, 1
 *   instance DEVICE SLOT GI CI TOTAL USED SM GRAPHICS UUID NAME
 *   process DEVICE LISTS PID MEMORY GI CI                                                       LISTS: letters of c, g, m
 *   sample DEVICE PID STAMP SM MEM ENC DEC JPG OFA     STAMP: microseconds, +N or -N from now, or live (the last full sixth of a second)
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, NO_DRIVER = 9, NO_FUNCTION = 13, LOST = 15, BAD_VERSION = 25 };
enum { GO_ON = -1, SLOTS = 32, RULES = 256, NAME = 96 };
#define NO_INSTANCE 0xFFFFFFFFu
#define LIVE_PERIOD 166667 /* microseconds: drivers sample processes about six times a second */

struct process { char lists[4]; uint32_t pid; uint64_t memory; uint32_t gi, ci; };
struct sample { uint32_t pid; char how; int64_t stamp; uint32_t use[6]; };
struct instance { int there; uint32_t gi, ci; uint64_t total, used; double sm, graphics; char uuid[NAME], name[NAME]; };
struct device {
    char uuid[NAME], pci[32], name[NAME];
    uint32_t minor, compute_mode, util, milliwatts, celsius, slots, gpm;
    int mig, lost;
    uint64_t total, used, millijoules;
    struct instance instances[SLOTS];
    struct process *processes; size_t process_count, process_room;
    struct sample *samples; size_t sample_count, sample_room;
};
struct rule { char call[80]; int device, slot; int64_t value, times; };
struct tally { const char *name; unsigned long calls; struct tally *next; };

static struct {
    struct stat seen;
    int is_there;
    char driver[80];
    struct device *devices; int device_count;
    struct rule errors[RULES], delays[RULES]; int error_count, delay_count;
} state;
static int initialised;
static struct tally *tallies;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- the file ---- */

static void forget(void)
{
    for (int i = 0; i < state.device_count; i++) {
        free(state.devices[i].processes);
        free(state.devices[i].samples);
    }
    free(state.devices);
    memset(&state, 0, sizeof state);
}

static void *more(void *old, size_t *room, size_t count, size_t size)
{
    if (count < *room)
        return old;
    *room = *room ? *room * 2 : 32;
    void *grown = realloc(old, *room * size);
    if (!grown)
        abort();
    return grown;
}

static void read_target(const char *text, struct rule *rule)
{
    rule->device = rule->slot = -1;
    if (*text == '*')
        return;
    if (sscanf(text, "%d.%d", &rule->device, &rule->slot) < 2)
        rule->slot = -2; /* the whole device only */
}

static void read_rule(const char *line, struct rule *rules, int *count, int has_times)
{
    char target[16];
    long long value, times = -1;
    struct rule *rule = &rules[*count];
    if (*count < RULES && sscanf(line, "%79s %15s %lld %lld", rule->call, target, &value, &times) >= (has_times ? 4 : 3)) {
        rule->value = value;
        rule->times = times;
        read_target(target, rule);
        (*count)++;
    }
}

static void read_device(const char *line)
{
    struct device *grown = realloc(state.devices, (size_t)(state.device_count + 1) * sizeof *grown), read = {0};
    if (!grown)
        abort();
    state.devices = grown;
    if (sscanf(line, "%95s %u %31s %u %d %d %u %lu %lu %u %u %lu %u %u %95[^\n]", read.uuid, &read.minor, read.pci, &read.compute_mode, &read.mig,
               &read.lost, &read.util, &read.total, &read.used, &read.milliwatts, &read.celsius, &read.millijoules, &read.slots, &read.gpm, read.name) >= 14)
        state.devices[state.device_count++] = read;
}

static struct device *device_of(const char **line)
{
    char *rest;
    long index = strtol(*line, &rest, 10);
    *line = rest;
    return index >= 0 && index < state.device_count ? &state.devices[index] : NULL;
}

static void read_instance(const char *line)
{
    struct device *device = device_of(&line);
    struct instance read = {.there = 1};
    unsigned slot;
    if (device && sscanf(line, "%u %u %u %lu %lu %lf %lf %95s %95[^\n]", &slot, &read.gi, &read.ci, &read.total, &read.used, &read.sm, &read.graphics,
                         read.uuid, read.name) >= 8 && slot < SLOTS)
        device->instances[slot] = read;
}

static void read_process(const char *line)
{
    struct device *device = device_of(&line);
    struct process read = {0};
    if (device && sscanf(line, "%3s %u %lu %u %u", read.lists, &read.pid, &read.memory, &read.gi, &read.ci) == 5) {
        device->processes = more(device->processes, &device->process_room, device->process_count, sizeof read);
        device->processes[device->process_count++] = read;
    }
}

static void read_sample(const char *line)
{
    struct device *device = device_of(&line);
    struct sample read = {0};
    char stamp[32];
    uint32_t *use = read.use;
    if (device && sscanf(line, "%u %31s %u %u %u %u %u %u", &read.pid, stamp, use, use + 1, use + 2, use + 3, use + 4, use + 5) == 8) {
        read.how = *stamp;
        read.stamp = strtoll(stamp, NULL, 10);
        device->samples = more(device->samples, &device->sample_room, device->sample_count, sizeof read);
        device->samples[device->sample_count++] = read;
    }
}

static void read_line(const char *line)
{
    if (!strncmp(line, "driver ", 7))
        sscanf(line + 7, "%79s", state.driver);
    else if (!strncmp(line, "error ", 6))
        read_rule(line + 6, state.errors, &state.error_count, 1);
    else if (!strncmp(line, "delay ", 6))
        read_rule(line + 6, state.delays, &state.delay_count, 0);
    else if (!strncmp(line, "device ", 7))
        read_device(line + 7);
    else if (!strncmp(line, "instance ", 9))
        read_instance(line + 9);
    else if (!strncmp(line, "process ", 8))
        read_process(line + 8);
    else if (!strncmp(line, "sample ", 7))
        read_sample(line + 7);
}

static int is_same(const struct stat *a, const struct stat *b)
{
    return a->st_ino == b->st_ino && a->st_size == b->st_size && a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

static void look(void)
{
    const char *path = getenv("FAKE_NVML_STATE");
    struct stat now;
    if (!path || stat(path, &now)) {
        forget();
        return;
    }
    if (state.is_there && is_same(&now, &state.seen))
        return;
    forget();
    FILE *file = fopen(path, "r");
    if (!file)
        return;
    char line[512];
    while (fgets(line, sizeof line, file))
        read_line(line);
    fclose(file);
    state.seen = now;
    state.is_there = 1;
}

/* ---- every call begins here ---- */

/* `nvmlX` in a rule means nvmlX_v2 and nvmlX_v3 too. */
static int is_call(const char *rule, const char *call)
{
    size_t length = strlen(rule);
    return !strncmp(rule, call, length) && (!call[length] || (call[length] == '_' && call[length + 1] == 'v'));
}

static struct rule *find_rule(struct rule *rules, int count, const char *call, int device, int slot)
{
    for (int i = 0; i < count; i++) {
        struct rule *rule = &rules[i];
        int fits = rule->device == -1 || (rule->device == device && (rule->slot == slot || (rule->slot == -2 && slot == -1)));
        if (fits && rule->times != 0 && is_call(rule->call, call))
            return rule;
    }
    return NULL;
}

static void wait_for(const char *call, int device, int slot)
{
    struct rule *delay = find_rule(state.delays, state.delay_count, call, device, slot);
    if (!delay)
        return;
    struct timespec time = {delay->value / 1000, delay->value % 1000 * 1000000};
    pthread_mutex_unlock(&lock);
    nanosleep(&time, NULL);
    pthread_mutex_lock(&lock);
    look();
}

/* Comes back with the lock held: GO_ON, or what the call has to return. */
static int begin(struct tally *tally, int device, int slot, int needs_init)
{
    pthread_mutex_lock(&lock);
    if (!tally->calls++) {
        tally->next = tallies;
        tallies = tally;
    }
    look();
    wait_for(tally->name, device, slot);
    if (needs_init && !initialised)
        return UNINITIALIZED;
    struct rule *error = find_rule(state.errors, state.error_count, tally->name, device, slot);
    if (error) {
        if (error->times > 0)
            error->times--;
        return (int)error->value;
    }
    if (!state.is_there)
        return NO_DRIVER;
    if (device >= state.device_count)
        return INVALID;
    return device >= 0 && state.devices[device].lost ? LOST : GO_ON;
}

static void leave(int *held)
{
    (void)held;
    pthread_mutex_unlock(&lock);
}

#define BEGIN(device, slot, needs_init)                                    \
    static struct tally tally = {.name = __func__};                        \
    __attribute__((cleanup(leave))) int said = begin(&tally, device, slot, needs_init); \
    if (said != GO_ON)                                                     \
        return said

/* A handle: the device's number + 1 in the upper bits, a MIG slot + 1 in the lower eight. */
typedef uintptr_t handle;
static int number_of(handle h) { return (int)(h >> 8) - 1; }
static int slot_of(handle h) { return (int)(h & 255) - 1; }

#define BEGIN_DEVICE(h)                                                    \
    if (!(h))                                                              \
        return INVALID;                                                    \
    BEGIN(number_of(h), slot_of(h), 1);                                    \
    struct device *device = &state.devices[number_of(h)];                  \
    struct instance *instance = slot_of(h) < 0 ? NULL : &device->instances[slot_of(h)]; \
    if (instance && !instance->there)                                      \
        return NOT_FOUND

static int put_text(const char *text, char *out, unsigned room)
{
    if (strlen(text) + 1 > room)
        return TOO_SMALL;
    strcpy(out, text);
    return OK;
}

static int driver_is_before(int major, int minor)
{
    int a = 0, b = 0;
    sscanf(state.driver, "%d.%d", &a, &b);
    return a < major || (a == major && b < minor);
}

/* ---- for tests ---- */

unsigned long fake_nvml_calls(const char *name)
{
    unsigned long calls = 0;
    pthread_mutex_lock(&lock);
    for (struct tally *tally = tallies; tally; tally = tally->next)
        if (is_call(name, tally->name))
            calls += tally->calls;
    pthread_mutex_unlock(&lock);
    return calls;
}

/* ---- the system ---- */

int nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    BEGIN(-1, -1, 0);
    initialised++;
    return OK;
}

int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

int nvmlShutdown(void)
{
    BEGIN(-1, -1, 1);
    initialised--;
    return OK;
}

const char *nvmlErrorString(int code)
{
    static char text[32];
    snprintf(text, sizeof text, "pretend error %d", code);
    return text;
}

int nvmlSystemGetDriverVersion(char *out, unsigned room)
{
    BEGIN(-1, -1, 1);
    return put_text(state.driver, out, room);
}

int nvmlDeviceGetCount_v2(unsigned *count)
{
    BEGIN(-1, -1, 1);
    *count = (unsigned)state.device_count;
    return OK;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, handle *out)
{
    BEGIN((int)index, -1, 1);
    *out = (handle)(index + 1) << 8;
    return OK;
}

/* ---- one device ---- */

int nvmlDeviceGetUUID(handle h, char *out, unsigned room)
{
    BEGIN_DEVICE(h);
    return put_text(instance ? instance->uuid : device->uuid, out, room);
}

int nvmlDeviceGetName(handle h, char *out, unsigned room)
{
    BEGIN_DEVICE(h);
    return put_text(instance ? instance->name : device->name, out, room);
}

int nvmlDeviceGetMinorNumber(handle h, unsigned *out)
{
    BEGIN_DEVICE(h);
    *out = device->minor;
    return instance ? INVALID : OK;
}

struct pci_info { char legacy[16]; unsigned domain, bus, device, device_id, subsystem_id; char id[32]; };

int nvmlDeviceGetPciInfo_v3(handle h, struct pci_info *out)
{
    BEGIN_DEVICE(h);
    memset(out, 0, sizeof *out);
    return put_text(device->pci, out->id, sizeof out->id);
}

int nvmlDeviceGetComputeMode(handle h, unsigned *out)
{
    BEGIN_DEVICE(h);
    *out = device->compute_mode;
    return instance ? NOT_SUPPORTED : OK;
}

struct utilization { unsigned gpu, memory; };

int nvmlDeviceGetUtilizationRates(handle h, struct utilization *out)
{
    BEGIN_DEVICE(h);
    if (device->mig == 1)
        return NOT_SUPPORTED;
    *out = (struct utilization){device->util, device->util / 2};
    return OK;
}

struct memory { uint64_t total, free, used; };

int nvmlDeviceGetMemoryInfo(handle h, struct memory *out)
{
    BEGIN_DEVICE(h);
    uint64_t total = instance ? instance->total : device->total, used = instance ? instance->used : device->used;
    *out = (struct memory){total, total - used, used};
    return OK;
}

int nvmlDeviceGetPowerUsage(handle h, unsigned *out)
{
    BEGIN_DEVICE(h);
    *out = device->milliwatts;
    return instance ? NOT_SUPPORTED : OK;
}

int nvmlDeviceGetTemperature(handle h, unsigned sensor, unsigned *out)
{
    BEGIN_DEVICE(h);
    *out = device->celsius;
    return sensor ? INVALID : OK;
}

int nvmlDeviceGetTotalEnergyConsumption(handle h, uint64_t *out)
{
    BEGIN_DEVICE(h);
    *out = device->millijoules;
    return OK;
}

/* ---- MIG ---- */

int nvmlDeviceGetMigMode(handle h, unsigned *now, unsigned *pending)
{
    BEGIN_DEVICE(h);
    if (device->mig < 0)
        return NOT_SUPPORTED;
    *now = *pending = (unsigned)device->mig;
    return OK;
}

int nvmlDeviceGetMaxMigDeviceCount(handle h, unsigned *out)
{
    BEGIN_DEVICE(h);
    *out = device->slots;
    return OK;
}

int nvmlDeviceGetMigDeviceHandleByIndex(handle h, unsigned slot, handle *out)
{
    BEGIN_DEVICE(h);
    if (slot >= device->slots || slot >= SLOTS)
        return INVALID;
    if (device->mig != 1 || !device->instances[slot].there)
        return NOT_FOUND;
    *out = h | (slot + 1);
    return OK;
}

int nvmlDeviceGetGpuInstanceId(handle h, unsigned *out)
{
    BEGIN_DEVICE(h);
    if (!instance)
        return NOT_SUPPORTED;
    *out = instance->gi;
    return OK;
}

int nvmlDeviceGetComputeInstanceId(handle h, unsigned *out)
{
    BEGIN_DEVICE(h);
    if (!instance)
        return NOT_SUPPORTED;
    *out = instance->ci;
    return OK;
}

/* ---- GPM: two samples of a GPU instance, and what happened between them ---- */

struct gpm_sample { int device; unsigned gi; unsigned long taken; };
struct gpm_metric { unsigned id; int said; double value; const char *short_name, *long_name, *unit; };
struct gpm_get { unsigned version, count; struct gpm_sample *first, *second; struct gpm_metric metrics[]; };
struct gpm_support { unsigned version, is_supported; };
static unsigned long samples_taken;

int nvmlGpmQueryDeviceSupport(handle h, struct gpm_support *out)
{
    BEGIN_DEVICE(h);
    if (out->version != 1)
        return BAD_VERSION;
    out->is_supported = device->gpm;
    return OK;
}

int nvmlGpmSampleAlloc(struct gpm_sample **out)
{
    BEGIN(-1, -1, 1);
    *out = calloc(1, sizeof **out);
    return OK;
}

int nvmlGpmSampleFree(struct gpm_sample *sample)
{
    BEGIN(-1, -1, 1);
    free(sample);
    return OK;
}

int nvmlGpmMigSampleGet(handle h, unsigned gi, struct gpm_sample *out)
{
    BEGIN_DEVICE(h);
    if (!device->gpm)
        return NOT_SUPPORTED;
    *out = (struct gpm_sample){number_of(h), gi, ++samples_taken};
    return OK;
}

static void measure(struct gpm_metric *metric, const struct gpm_sample *sample)
{
    metric->said = NOT_FOUND;
    for (int slot = 0; slot < SLOTS; slot++) {
        struct instance *found = &state.devices[sample->device].instances[slot];
        double value = metric->id == 2 ? found->sm : found->graphics;
        if (found->there && found->gi == sample->gi && (metric->id == 1 || metric->id == 2)) {
            metric->said = value < 0 ? NOT_SUPPORTED : OK;
            metric->value = value;
            return;
        }
    }
}

int nvmlGpmMetricsGet(struct gpm_get *get)
{
    BEGIN(-1, -1, 1);
    struct gpm_sample *first = get->first, *second = get->second;
    if (get->version != 1)
        return BAD_VERSION;
    if (!first || !second || !first->taken || first->taken >= second->taken || first->device != second->device || first->gi != second->gi ||
        first->device >= state.device_count)
        return INVALID;
    for (unsigned i = 0; i < get->count; i++)
        measure(&get->metrics[i], second);
    return OK;
}

/* ---- process lists ---- */

struct narrow { uint32_t pid; uint64_t memory; uint32_t gi, ci; };
struct wide { struct narrow info; uint64_t guarded; }; /* what _v3 wrote in the first releases of R535 */

static int is_listed(const struct process *process, char list, const struct instance *instance)
{
    return strchr(process->lists, list) && (!instance || (process->gi == instance->gi && process->ci == instance->ci));
}

static int list(struct device *device, const struct instance *instance, char which, unsigned *room, char *out, size_t stride)
{
    unsigned count = 0, fits = out ? *room : 0;
    for (size_t i = 0; i < device->process_count; i++) {
        const struct process *process = &device->processes[i];
        if (!is_listed(process, which, instance))
            continue;
        if (count < fits) {
            struct narrow info = {process->pid, process->memory, process->gi, process->ci};
            memcpy(out + count * stride, &info, sizeof info);
        }
        count++;
    }
    *room = count;
    return count > fits ? TOO_SMALL : OK;
}

static int list_v3(struct device *device, const struct instance *instance, char which, unsigned *room, char *out)
{
    if (driver_is_before(510, 0) || (!driver_is_before(535, 98) && driver_is_before(535, 104)))
        return NO_FUNCTION;
    int is_wide = !driver_is_before(535, 0) && driver_is_before(535, 98);
    return list(device, instance, which, room, out, is_wide ? sizeof(struct wide) : sizeof(struct narrow));
}

#define LISTS(name, which)                                                                  \
    int name##_v2(handle h, unsigned *room, char *out)                                      \
    {                                                                                       \
        BEGIN_DEVICE(h);                                                                    \
        return list(device, instance, which, room, out, sizeof(struct narrow));             \
    }                                                                                       \
    int name##_v3(handle h, unsigned *room, char *out)                                      \
    {                                                                                       \
        BEGIN_DEVICE(h);                                                                    \
        return list_v3(device, instance, which, room, out);                                 \
    }

LISTS(nvmlDeviceGetComputeRunningProcesses, 'c')
LISTS(nvmlDeviceGetGraphicsRunningProcesses, 'g')
LISTS(nvmlDeviceGetMPSComputeRunningProcesses, 'm')

/* ---- utilisation of processes ---- */

struct old_sample { uint32_t pid; uint64_t stamp; uint32_t use[4]; };
struct new_sample { uint64_t stamp; uint32_t pid, use[6]; };
struct new_samples { uint32_t version, count; uint64_t since; struct new_sample *out; };

static uint64_t stamp_of(const struct sample *sample, int64_t now)
{
    if (sample->how == 'l')
        return (uint64_t)(now - now % LIVE_PERIOD);
    return (uint64_t)(sample->how == '+' || sample->how == '-' ? now + sample->stamp : sample->stamp);
}

/* A stamp of 0 is what a driver writes that lost count: it is not compared. */
static int find_samples(struct device *device, uint64_t since, unsigned *room, void *out, void (*put)(void *, unsigned, const struct sample *, uint64_t))
{
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    int64_t now = (int64_t)time.tv_sec * 1000000 + time.tv_nsec / 1000;
    unsigned count = 0, fits = out ? *room : 0;
    for (size_t i = 0; i < device->sample_count; i++) {
        uint64_t stamp = stamp_of(&device->samples[i], now);
        if (stamp && stamp <= since)
            continue;
        if (count < fits)
            put(out, count, &device->samples[i], stamp);
        count++;
    }
    *room = count;
    return !count ? NOT_FOUND : count > fits ? TOO_SMALL : OK;
}

static void put_old(void *out, unsigned at, const struct sample *from, uint64_t stamp)
{
    struct old_sample *to = (struct old_sample *)out + at;
    to->pid = from->pid;
    to->stamp = stamp;
    memcpy(to->use, from->use, sizeof to->use);
}

static void put_new(void *out, unsigned at, const struct sample *from, uint64_t stamp)
{
    struct new_sample *to = (struct new_sample *)out + at;
    to->pid = from->pid;
    to->stamp = stamp;
    memcpy(to->use, from->use, sizeof to->use);
}

int nvmlDeviceGetProcessUtilization(handle h, struct old_sample *out, unsigned *room, uint64_t since)
{
    BEGIN_DEVICE(h);
    if (device->mig == 1)
        return NOT_SUPPORTED;
    return find_samples(device, since, room, out, put_old);
}

int nvmlDeviceGetProcessesUtilizationInfo(handle h, struct new_samples *asked)
{
    BEGIN_DEVICE(h);
    if (driver_is_before(550, 0))
        return NO_FUNCTION;
    if (asked->version != 0x01000018)
        return BAD_VERSION;
    if (device->mig == 1)
        return NOT_SUPPORTED;
    return find_samples(device, asked->since, &asked->count, asked->out, put_new);
}
