/* The innermost loops, compiled: checksums, one plain append, the body of a batch, plain frames,
   plain events.

   Everything here exists in Python too (`_crc`, `_tip`, `_columns`, `_frame`, `_runs`, and `_event`
   of `events`) and does
   exactly the same there; the tests compare the two byte by byte and store by store. An
   installation without a C compiler lacks this module and nothing else.

   Rules: the interpreter lock is held throughout, so whatever is read under it stays as it is; no
   function runs Python code between its first check and its last store; every range is checked
   against the buffer it lies in; what is out of the ordinary is left to the Python twin. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include <stdint.h>
#include <string.h>
#include <time.h>

#if defined(__x86_64__) && defined(__GNUC__)
#define HAVE_FOLDING 1
#include <immintrin.h>
#endif

/* --- CRC32 with zlib's polynomial ------------------------------------------------------------ */

#define POLYNOMIAL 0xEDB88320u
#define FOLDING_LEAST 64
#define WIDE_LEAST 512
#define SLICES 8

static uint32_t table[SLICES][256];
static int folding;      /* the processor multiplies without carry */
static int wide_folding; /* four times side by side */

static void
fill_table(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++) {
            crc = crc >> 1 ^ (crc & 1 ? POLYNOMIAL : 0);
        }
        table[0][byte] = crc;
    }
    for (int slice = 1; slice < SLICES; slice++) {
        for (int byte = 0; byte < 256; byte++) {
            uint32_t crc = table[slice - 1][byte];
            table[slice][byte] = crc >> 8 ^ table[0][crc & 0xFF];
        }
    }
}

/* The register after some more bytes; eight at a time by table. */
static uint32_t
crc_by_table(uint32_t crc, const uint8_t *data, size_t size)
{
    for (; size >= 8; data += 8, size -= 8) {
        uint64_t word;
        memcpy(&word, data, 8);
        word ^= crc;
        crc = table[7][word & 0xFF] ^ table[6][word >> 8 & 0xFF] ^ table[5][word >> 16 & 0xFF]
            ^ table[4][word >> 24 & 0xFF] ^ table[3][word >> 32 & 0xFF]
            ^ table[2][word >> 40 & 0xFF] ^ table[1][word >> 48 & 0xFF] ^ table[0][word >> 56];
    }
    for (; size; data++, size--) {
        crc = crc >> 8 ^ table[0][(crc ^ *data) & 0xFF];
    }
    return crc;
}

#ifdef HAVE_FOLDING
/* 16 bytes carried forward over the distance that the two multipliers stand for. */
#define CARRIED(x, by) \
    _mm_xor_si128(_mm_clmulepi64_si128(x, by, 0x00), _mm_clmulepi64_si128(x, by, 0x11))
#define LOADED(p) _mm_loadu_si128((const __m128i *)(p))

/* Powers of x modulo the polynomial, reflected: to the distance in bits, plus and minus 32. */
#define OVER_16 _mm_set_epi64x(0x00ccaa009e, 0x01751997d0)
#define OVER_64 _mm_set_epi64x(0x01c6e41596, 0x0154442bd4)
#define OVER_256 _mm_set_epi64x(0x1322d1430, 0x11542778a)

/* The register after the 16 bytes that stand for all bytes in front of `data`, and some more. */
__attribute__((target("pclmul,sse4.1"))) static uint32_t
crc_behind(__m128i folded, const uint8_t *data, size_t size)
{
    uint8_t last[16];

    for (; size >= 16; data += 16, size -= 16) {
        folded = _mm_xor_si128(CARRIED(folded, OVER_16), LOADED(data));
    }
    _mm_storeu_si128((__m128i *)last, folded);
    return crc_by_table(crc_by_table(0, last, 16), data, size);
}

/* The register after at least 64 bytes: four lanes of 16 bytes are carried forward over the data,
   then into one another. */
__attribute__((target("pclmul,sse4.1"))) static uint32_t
crc_by_folding(uint32_t crc, const uint8_t *data, size_t size)
{
    __m128i a = _mm_xor_si128(LOADED(data), _mm_cvtsi32_si128((int)crc));
    __m128i b = LOADED(data + 16), c = LOADED(data + 32), d = LOADED(data + 48);

    for (data += 64, size -= 64; size >= 64; data += 64, size -= 64) {
        a = _mm_xor_si128(CARRIED(a, OVER_64), LOADED(data));
        b = _mm_xor_si128(CARRIED(b, OVER_64), LOADED(data + 16));
        c = _mm_xor_si128(CARRIED(c, OVER_64), LOADED(data + 32));
        d = _mm_xor_si128(CARRIED(d, OVER_64), LOADED(data + 48));
    }
    b = _mm_xor_si128(CARRIED(a, OVER_16), b);
    c = _mm_xor_si128(CARRIED(b, OVER_16), c);
    return crc_behind(_mm_xor_si128(CARRIED(c, OVER_16), d), data, size);
}

#define WIDE_CARRIED(x, by, next) \
    _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(x, by, 0x00), \
                              _mm512_clmulepi64_epi128(x, by, 0x11), next, 0x96)
#define WIDE_LOADED(p) _mm512_loadu_si512(p)

/* The same after at least 256 bytes, with lanes of 64 bytes. */
__attribute__((target("avx512f,avx512dq,vpclmulqdq,pclmul,sse4.1"))) static uint32_t
crc_by_wide_folding(uint32_t crc, const uint8_t *data, size_t size)
{
    const __m512i over_256 = _mm512_broadcast_i32x4(OVER_256);
    const __m512i over_64 = _mm512_broadcast_i32x4(OVER_64);
    __m512i first = _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)crc));
    __m512i a = _mm512_xor_si512(WIDE_LOADED(data), first), b = WIDE_LOADED(data + 64);
    __m512i c = WIDE_LOADED(data + 128), d = WIDE_LOADED(data + 192);
    __m128i folded;

    for (data += 256, size -= 256; size >= 256; data += 256, size -= 256) {
        a = WIDE_CARRIED(a, over_256, WIDE_LOADED(data));
        b = WIDE_CARRIED(b, over_256, WIDE_LOADED(data + 64));
        c = WIDE_CARRIED(c, over_256, WIDE_LOADED(data + 128));
        d = WIDE_CARRIED(d, over_256, WIDE_LOADED(data + 192));
    }
    b = WIDE_CARRIED(a, over_64, b);
    c = WIDE_CARRIED(b, over_64, c);
    d = WIDE_CARRIED(c, over_64, d);
    folded = _mm512_extracti32x4_epi32(d, 0);
    folded = _mm_xor_si128(CARRIED(folded, OVER_16), _mm512_extracti32x4_epi32(d, 1));
    folded = _mm_xor_si128(CARRIED(folded, OVER_16), _mm512_extracti32x4_epi32(d, 2));
    folded = _mm_xor_si128(CARRIED(folded, OVER_16), _mm512_extracti32x4_epi32(d, 3));
    return crc_behind(folded, data, size);
}
#endif

static uint32_t
crc_of(uint32_t value, const uint8_t *data, size_t size)
{
#ifdef HAVE_FOLDING
    if (wide_folding && size >= WIDE_LEAST) {
        return ~crc_by_wide_folding(~value, data, size);
    }
    if (folding && size >= FOLDING_LEAST) {
        return ~crc_by_folding(~value, data, size);
    }
#endif
    return ~crc_by_table(~value, data, size);
}

PyDoc_STRVAR(crc32_doc, "crc32(data, value=0, /)\n--\n\nAs `zlib.crc32`.");

static PyObject *
native_crc32(PyObject *Py_UNUSED(module), PyObject *const *arguments, Py_ssize_t count)
{
    uint32_t value = 0;
    Py_buffer data;

    if (count < 1 || count > 2) {
        PyErr_Format(PyExc_TypeError, "crc32 takes 1 or 2 arguments, not %zd", count);
        return NULL;
    }
    if (count == 2) {
        value = (uint32_t)PyLong_AsUnsignedLongMask(arguments[1]);
        if (value == (uint32_t)-1 && PyErr_Occurred()) {
            return NULL;
        }
    }
    if (PyBytes_CheckExact(arguments[0])) {
        const uint8_t *start = (const uint8_t *)PyBytes_AS_STRING(arguments[0]);
        value = crc_of(value, start, (size_t)PyBytes_GET_SIZE(arguments[0]));
        return PyLong_FromUnsignedLong(value);
    }
    if (PyObject_GetBuffer(arguments[0], &data, PyBUF_SIMPLE) < 0) {
        return NULL;
    }
    value = crc_of(value, data.buf, (size_t)data.len);
    PyBuffer_Release(&data);
    return PyLong_FromUnsignedLong(value);
}

/* --- the frame header, as `_frame` declares it ------------------------------------------------ */

#define BATCH 1
#define MORE 0x01
#define EXPLICIT 0x20
#define MAX_FRAME_BYTES (16 * 1024 * 1024)

typedef struct {
    uint32_t frame_bytes;
    uint8_t kind;
    uint8_t flags;
    uint16_t reserved;
    uint64_t sequence;
    int64_t timestamp_ns;
    uint32_t count;
    uint32_t synced_lag;
    uint32_t body_crc;
    uint32_t header_crc;
} Header;

#define HEADER_BYTES ((Py_ssize_t)sizeof(Header))
#define COVERED_BYTES ((Py_ssize_t)offsetof(Header, header_crc))
#define ALIGNED(size) (((size) + 7) & ~(Py_ssize_t)7)

_Static_assert(sizeof(Header) == 40, "the header has no holes");
_Static_assert(offsetof(Header, header_crc) == 36, "the checksum is its last word");

/* --- Tip: where the log ends, and one plain record behind it ---------------------------------- */

typedef struct {
    PyObject_HEAD
    long long position;
    long long sequence;
    long long soft_limit;
    long long vouched;
    long long assigned_ns;
    unsigned long long seed;
    PyObject *lock;
    PyObject *clock;
    PyObject *m;
    PyObject *words;
    PyObject *quads;
    PyObject *unchained;
    PyObject *next_word;
} Tip;

static PyMemberDef tip_members[] = {
    {"position", T_LONGLONG, offsetof(Tip, position), 0, NULL},
    {"sequence", T_LONGLONG, offsetof(Tip, sequence), 0, NULL},
    {"soft_limit", T_LONGLONG, offsetof(Tip, soft_limit), 0, NULL},
    {"vouched", T_LONGLONG, offsetof(Tip, vouched), 0, NULL},
    {"assigned_ns", T_LONGLONG, offsetof(Tip, assigned_ns), 0, NULL},
    {"seed", T_ULONGLONG, offsetof(Tip, seed), 0, NULL},
    {"lock", T_OBJECT_EX, offsetof(Tip, lock), 0, NULL},
    {"_clock", T_OBJECT_EX, offsetof(Tip, clock), 0, NULL},
    {"m", T_OBJECT_EX, offsetof(Tip, m), 0, NULL},
    {"words", T_OBJECT_EX, offsetof(Tip, words), 0, NULL},
    {"quads", T_OBJECT_EX, offsetof(Tip, quads), 0, NULL},
    {"unchained", T_OBJECT_EX, offsetof(Tip, unchained), 0, NULL},
    {"next_word", T_OBJECT_EX, offsetof(Tip, next_word), 0, NULL},
    {NULL},
};

#define OBJECTS(tip) {&(tip)->lock, &(tip)->clock, &(tip)->m, &(tip)->words, &(tip)->quads, \
                      &(tip)->unchained, &(tip)->next_word}

static int
tip_traverse(Tip *self, visitproc visit, void *arg)
{
    PyObject **objects[] = OBJECTS(self);
    for (size_t i = 0; i < sizeof objects / sizeof *objects; i++) {
        Py_VISIT(*objects[i]);
    }
    Py_VISIT(Py_TYPE(self));
    return 0;
}

static int
tip_clear(Tip *self)
{
    PyObject **objects[] = OBJECTS(self);
    for (size_t i = 0; i < sizeof objects / sizeof *objects; i++) {
        Py_CLEAR(*objects[i]);
    }
    return 0;
}

static void
tip_dealloc(Tip *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    tip_clear(self);
    type->tp_free((PyObject *)self);
    Py_DECREF(type);
}

static PyObject *lock_type;   /* of threading.Lock() */
static PyObject *time_ns;     /* time.time_ns */
static PyObject *locked_name; /* "locked" */

/* What one append stores, and into what. */
typedef struct {
    Py_buffer map;
    Py_buffer next; /* one word: the number of the next record */
    Header header;
    const uint8_t *value;
    Py_ssize_t size;
} Store;

/* 1 when the append lock is free, and so nobody can take it before this thread runs Python code
   again; 0 when it is not, or when locks or clocks are other than the ones known here. */
static int
is_ordinary(Tip *self)
{
    PyObject *locked;
    int is_free;

    if (self->clock != time_ns || self->lock == NULL || self->m == NULL || self->next_word == NULL
        || self->unchained == NULL || !PyList_CheckExact(self->unchained)
        || (PyObject *)Py_TYPE(self->lock) != lock_type || !PyObject_CheckBuffer(self->m)
        || !PyObject_CheckBuffer(self->next_word)) {
        return 0;
    }
    locked = PyObject_CallMethodNoArgs(self->lock, locked_name);
    if (locked == NULL) {
        return -1;
    }
    is_free = locked == Py_False;
    Py_DECREF(locked);
    return is_free;
}

static int
take_buffers(Tip *self, Store *store)
{
    if (PyObject_GetBuffer(self->m, &store->map, PyBUF_WRITABLE) < 0) {
        return -1;
    }
    if (PyObject_GetBuffer(self->next_word, &store->next, PyBUF_WRITABLE) < 0) {
        PyBuffer_Release(&store->map);
        return -1;
    }
    return 0;
}

static void
give_buffers_back(Store *store)
{
    PyBuffer_Release(&store->next);
    PyBuffer_Release(&store->map);
}

static void
fill_header(Tip *self, Store *store)
{
    struct timespec now;
    long long now_ns;

    clock_gettime(CLOCK_REALTIME, &now);
    now_ns = (long long)now.tv_sec * 1000000000 + now.tv_nsec;
    if (now_ns > self->assigned_ns) {
        self->assigned_ns = now_ns;
    }
    store->header = (Header){
        .frame_bytes = (uint32_t)(HEADER_BYTES + store->size),
        .kind = BATCH,
        .sequence = (uint64_t)self->sequence,
        .timestamp_ns = self->assigned_ns,
        .count = 1,
        .synced_lag = (uint32_t)(self->sequence - self->vouched),
        .body_crc = crc_of(0, store->value, (size_t)store->size),
    };
    store->header.header_crc = crc_of((uint32_t)self->seed ^ (uint32_t)self->position,
                                      (const uint8_t *)&store->header, COVERED_BYTES);
}

#define STORES 4

/* The stores, in the order of the Python twin: body, header but its first and last word, the last,
   the first. Tests ask for fewer than all of them. */
static void
make_stores(uint8_t *frame, const Store *store, int stores)
{
    const uint8_t *header = (const uint8_t *)&store->header;

    if (stores > 0) {
        memcpy(frame + HEADER_BYTES, store->value, (size_t)store->size);
    }
    if (stores > 1) {
        memcpy(frame + 4, header + 4, (size_t)COVERED_BYTES - 4);
    }
    if (stores > 2) {
        memcpy(frame + COVERED_BYTES, header + COVERED_BYTES, 4);
    }
    if (stores > 3) {
        __atomic_store_n((uint32_t *)frame, store->header.frame_bytes, __ATOMIC_RELEASE);
    }
}

/* Publishes the record and counts it; with fewer than all stores it only makes those. */
static PyObject *
publish(Tip *self, Store *store, int stores)
{
    Py_ssize_t stop = (Py_ssize_t)self->position + HEADER_BYTES + store->size;
    PyObject *header_crc, *sequence;
    uint8_t *frame;

    if (self->position < 0 || self->position % 8 || stop > store->map.len
        || store->next.len != 8) {
        return PyLong_FromLong(-1);
    }
    frame = (uint8_t *)store->map.buf + self->position;
    fill_header(self, store);
    if (stores < STORES) {
        make_stores(frame, store, stores);
        return PyLong_FromLong(-1);
    }
    sequence = PyLong_FromLongLong(self->sequence);
    header_crc = PyLong_FromUnsignedLong(store->header.header_crc);
    if (sequence == NULL || header_crc == NULL || PyList_Append(self->unchained, header_crc) < 0) {
        Py_XDECREF(header_crc);
        Py_XDECREF(sequence);
        return NULL;
    }
    Py_DECREF(header_crc);
    make_stores(frame, store, stores); /* from here on nothing fails and nothing interrupts */
    self->position = ALIGNED(stop);
    self->sequence++;
    __atomic_store_n((uint64_t *)store->next.buf, (uint64_t)self->sequence, __ATOMIC_RELEASE);
    __atomic_thread_fence(__ATOMIC_SEQ_CST); /* the caller looks next whether somebody sleeps */
    return sequence;
}

static PyObject *
store_record(Tip *self, PyObject *value, int stores)
{
    Store store;
    PyObject *result;
    int ordinary;

    if (!PyBytes_CheckExact(value)
        || self->position + HEADER_BYTES + PyBytes_GET_SIZE(value) > self->soft_limit) {
        return PyLong_FromLong(-1);
    }
    ordinary = is_ordinary(self);
    if (ordinary <= 0) {
        return ordinary < 0 ? NULL : PyLong_FromLong(-1);
    }
    if (take_buffers(self, &store) < 0) {
        return NULL;
    }
    store.value = (const uint8_t *)PyBytes_AS_STRING(value);
    store.size = PyBytes_GET_SIZE(value);
    result = publish(self, &store, stores);
    give_buffers_back(&store);
    return result;
}

PyDoc_STRVAR(store_plain_doc,
"store_plain(value, /)\n--\n\n"
"Publish one record without key or headers; returns its sequence.\n\n"
"-1 when the way is not the ordinary one: nothing was stored.");

static PyObject *
tip_store_plain(Tip *self, PyObject *value)
{
    return store_record(self, value, STORES);
}

PyDoc_STRVAR(store_partly_doc,
"store_partly(value, stores, /)\n--\n\n"
"For tests: only the first stores of `store_plain`, as if the process had died behind them.");

static PyObject *
tip_store_partly(Tip *self, PyObject *const *arguments, Py_ssize_t count)
{
    long stores;
    PyObject *result;

    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "store_partly takes a value and a number of stores");
        return NULL;
    }
    stores = PyLong_AsLong(arguments[1]);
    if (stores < 0 || stores >= STORES) {
        PyErr_SetString(PyExc_ValueError, "store_partly makes fewer than all stores");
        return NULL;
    }
    result = store_record(self, arguments[0], (int)stores);
    Py_XDECREF(result);
    return result == NULL ? NULL : Py_NewRef(Py_None);
}

static PyMethodDef tip_methods[] = {
    {"store_plain", (PyCFunction)tip_store_plain, METH_O, store_plain_doc},
    {"store_partly", (PyCFunction)(void (*)(void))tip_store_partly, METH_FASTCALL,
     store_partly_doc},
    {NULL},
};

static PyType_Slot tip_slots[] = {
    {Py_tp_doc, "The end of a log that is being written; base of the writer."},
    {Py_tp_members, tip_members},
    {Py_tp_methods, tip_methods},
    {Py_tp_traverse, tip_traverse},
    {Py_tp_clear, tip_clear},
    {Py_tp_dealloc, tip_dealloc},
    {0, NULL},
};

static PyType_Spec tip_spec = {
    .name = "headwater._native.Tip",
    .basicsize = sizeof(Tip),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = tip_slots,
};

/* --- the body of a batch of plain values ------------------------------------------------------ */

#define AHEAD 8            /* values are brought near so many places before they are needed */
#define PIECE_BYTES 16384 /* so much is copied before its checksum, while it is near */

/* Bytes in the values of a list; -1 unless each of them is exactly `bytes`, -2 above `limit`. */
static Py_ssize_t
total_of(PyObject *values, Py_ssize_t limit)
{
    Py_ssize_t count = PyList_GET_SIZE(values), total = 0;

    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *item = PyList_GET_ITEM(values, i);
        if (i + AHEAD < count) {
            __builtin_prefetch(PyList_GET_ITEM(values, i + AHEAD));
        }
        if (!PyBytes_CheckExact(item)) {
            return -1;
        }
        total += PyBytes_GET_SIZE(item);
        if (total > limit) {
            return -2;
        }
    }
    return total;
}

/* Fills `body` with offsets and values; returns its checksum. */
static uint32_t
copy_values(uint8_t *body, PyObject *values, Py_ssize_t offsets_bytes)
{
    Py_ssize_t count = PyList_GET_SIZE(values);
    int32_t *offsets = (int32_t *)body, offset = 0;
    uint8_t *to = body + offsets_bytes, *counted = to;
    uint32_t crc;

    for (Py_ssize_t i = 0; i < count; i++) {
        offsets[i] = offset;
        offset += (int32_t)PyBytes_GET_SIZE(PyList_GET_ITEM(values, i));
    }
    offsets[count] = offset;
    if (count % 2 == 0) {
        offsets[count + 1] = 0; /* the pad of an odd number of offsets */
    }
    crc = crc_of(0, body, (size_t)offsets_bytes);
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *item = PyList_GET_ITEM(values, i);
        memcpy(to, PyBytes_AS_STRING(item), (size_t)PyBytes_GET_SIZE(item));
        to += PyBytes_GET_SIZE(item);
        if (to - counted >= PIECE_BYTES) {
            crc = crc_of(crc, counted, (size_t)(to - counted));
            counted = to;
        }
    }
    return crc_of(crc, counted, (size_t)(to - counted));
}

#define SPARE_BYTES (1024 * 1024)

static PyObject *spare; /* the body made last: its memory serves again when nobody else has it */

/* Room for a body. Fresh memory would cost a page fault for every 4 KiB. */
static PyObject *
room_for(Py_ssize_t size)
{
    if (size > SPARE_BYTES) {
        return PyByteArray_FromStringAndSize(NULL, size);
    }
    if (spare == NULL || Py_REFCNT(spare) > 1) {
        Py_XSETREF(spare, PyByteArray_FromStringAndSize(NULL, size));
    } else if (PyByteArray_GET_SIZE(spare) != size && PyByteArray_Resize(spare, size) < 0) {
        return NULL;
    }
    return Py_XNewRef(spare);
}

PyDoc_STRVAR(pack_values_doc,
"pack_values(values, limit, /)\n--\n\n"
"The body of a batch of at least two plain values, and its checksum.\n\n"
"None for anything but a list of exactly `bytes`, and for a body of more than `limit` bytes.");

static PyObject *
native_pack_values(PyObject *Py_UNUSED(module), PyObject *const *arguments, Py_ssize_t given)
{
    Py_ssize_t count, total, limit, offsets_bytes;
    PyObject *values, *body;
    uint32_t crc;

    if (given != 2) {
        PyErr_Format(PyExc_TypeError, "pack_values takes 2 arguments, not %zd", given);
        return NULL;
    }
    limit = PyLong_AsSsize_t(arguments[1]);
    if (limit == -1 && PyErr_Occurred()) {
        return NULL;
    }
    values = arguments[0];
    count = PyList_CheckExact(values) ? PyList_GET_SIZE(values) : 0;
    if (limit > MAX_FRAME_BYTES || count < 2 || count > limit / 4) {
        Py_RETURN_NONE;
    }
    offsets_bytes = ALIGNED(4 * (count + 1));
    total = total_of(values, limit - offsets_bytes);
    if (total < 0) {
        Py_RETURN_NONE;
    }
    body = room_for(offsets_bytes + total);
    if (body == NULL) {
        return NULL;
    }
    crc = copy_values((uint8_t *)PyByteArray_AS_STRING(body), values, offsets_bytes);
    return Py_BuildValue("NI", body, crc);
}

/* --- reading ---------------------------------------------------------------------------------- */

#define FLAGS 0x3F
#define TIMESTAMPS 0x04
#define KINDS 4

/* Whether kind, flags and counts are ones that `_frame` would not wonder about. */
static int
is_sound(const Header *header)
{
    uint64_t room = header->frame_bytes - (uint64_t)HEADER_BYTES, count = header->count;
    uint64_t least = header->flags & TIMESTAMPS ? 8 : count > 1 ? 4 : 0;

    return header->kind >= BATCH && header->kind <= KINDS && !(header->flags & ~FLAGS)
        && !header->reserved && (header->kind == BATCH) == (count > 0) && count * least <= room
        && header->sequence + count <= (uint64_t)INT64_MAX && header->sequence <= INT64_MAX;
}

/* Bytes from `position` to the next frame when a whole frame stands there that ends before `stop`,
   and its header in `header`; 0 for anything else, which the Python twin judges. The checksum is
   that of the copy: a writer may store while this reads, and what is returned was checked. */
static Py_ssize_t
frame_at(const Py_buffer *view, Py_ssize_t position, Py_ssize_t stop, uint32_t seed,
         Header *header)
{
    const uint8_t *frame;
    Py_ssize_t size, space;

    if (position < 0 || stop > view->len || position > stop - HEADER_BYTES) {
        return 0;
    }
    frame = (const uint8_t *)view->buf + position;
    memcpy(header, frame, sizeof *header);
    size = header->frame_bytes;
    space = ALIGNED(size);
    if (size < HEADER_BYTES || size > MAX_FRAME_BYTES || size > stop - position
        || space > view->len - position || !is_sound(header)
        || crc_of(seed ^ (uint32_t)position, (const uint8_t *)header, COVERED_BYTES)
            != header->header_crc
        || crc_of(0, frame + HEADER_BYTES, (size_t)(size - HEADER_BYTES)) != header->body_crc) {
        return 0;
    }
    for (Py_ssize_t pad = size; pad < space; pad++) {
        if (frame[pad]) {
            return 0;
        }
    }
    return space;
}

PyDoc_STRVAR(whole_frame_doc,
"whole_frame(view, position, stop, seed, /)\n--\n\n"
"The fields of a `Frame` when a whole one stands at `position`, else None.");

static PyObject *
native_whole_frame(PyObject *Py_UNUSED(module), PyObject *const *arguments, Py_ssize_t given)
{
    Py_buffer view;
    Py_ssize_t position, stop, space;
    uint32_t seed;
    Header header;

    if (given != 4) {
        PyErr_Format(PyExc_TypeError, "whole_frame takes 4 arguments, not %zd", given);
        return NULL;
    }
    position = PyNumber_AsSsize_t(arguments[1], NULL); /* what is too large for it: its largest */
    stop = PyNumber_AsSsize_t(arguments[2], NULL);
    seed = (uint32_t)PyLong_AsUnsignedLong(arguments[3]);
    if (PyErr_Occurred() || PyObject_GetBuffer(arguments[0], &view, PyBUF_SIMPLE) < 0) {
        return NULL;
    }
    space = frame_at(&view, position, stop, seed, &header);
    PyBuffer_Release(&view);
    if (space == 0) {
        Py_RETURN_NONE;
    }
    return Py_BuildValue("nIBBKLIIII", position, header.frame_bytes, header.kind, header.flags,
                         (unsigned long long)header.sequence, (long long)header.timestamp_ns,
                         header.count, header.synced_lag, header.body_crc, header.header_crc);
}

/* Takes over the reference to `item`. */
static int
append_new(PyObject *list, PyObject *item)
{
    int result = item == NULL ? -1 : PyList_Append(list, item);
    Py_XDECREF(item);
    return result;
}

PyDoc_STRVAR(read_singles_doc,
"read_singles(view, position, stop, sequence, limit, seed, /)\n--\n\n"
"The run of frames of one plain record that begins at `position`: positions, times, values.\n\n"
"At most `limit` frames, none that begins beyond `stop`.");

static PyObject *
native_read_singles(PyObject *Py_UNUSED(module), PyObject *const *arguments, Py_ssize_t given)
{
    Py_buffer view;
    Py_ssize_t position, stop, limit, space;
    uint64_t sequence;
    uint32_t seed;
    PyObject *positions, *times, *items, *result = NULL;
    Header header;
    int failed = 0;

    if (given != 6) {
        PyErr_Format(PyExc_TypeError, "read_singles takes 6 arguments, not %zd", given);
        return NULL;
    }
    position = PyNumber_AsSsize_t(arguments[1], NULL);
    stop = PyNumber_AsSsize_t(arguments[2], NULL);
    sequence = PyLong_AsUnsignedLongLong(arguments[3]);
    limit = PyNumber_AsSsize_t(arguments[4], NULL);
    seed = (uint32_t)PyLong_AsUnsignedLong(arguments[5]);
    if (PyErr_Occurred() || PyObject_GetBuffer(arguments[0], &view, PyBUF_SIMPLE) < 0) {
        return NULL;
    }
    positions = PyList_New(0);
    times = PyList_New(0);
    items = PyList_New(0);
    failed = !positions || !times || !items;
    for (; limit > 0 && position <= stop && !failed; limit--, sequence++) {
        space = frame_at(&view, position, view.len, seed, &header);
        if (space == 0 || header.sequence != sequence || header.count != 1
            || header.flags & ~(MORE | EXPLICIT)) {
            break;
        }
        failed = append_new(positions, PyLong_FromSsize_t(position)) < 0
            || append_new(times, PyLong_FromLongLong(header.timestamp_ns)) < 0
            || append_new(items, PyBytes_FromStringAndSize(
                   (const char *)view.buf + position + HEADER_BYTES,
                   header.frame_bytes - HEADER_BYTES)) < 0;
        position += space;
    }
    PyBuffer_Release(&view);
    if (!failed) {
        result = PyTuple_Pack(3, positions, times, items);
    }
    Py_XDECREF(positions);
    Py_XDECREF(times);
    Py_XDECREF(items);
    return result;
}

/* Whether a body is offsets that never decrease, their pad, and as many bytes as they say. */
static int
holds_values(const uint8_t *body, Py_ssize_t size, uint32_t count)
{
    Py_ssize_t offsets_bytes = ALIGNED(4 * ((Py_ssize_t)count + 1));
    const int32_t *offsets = (const int32_t *)body;
    int decreases = 0;

    if (size < offsets_bytes || (uintptr_t)body % sizeof *offsets) {
        return 0;
    }
    for (uint32_t i = 0; i < count; i++) {
        decreases |= offsets[i + 1] < offsets[i];
    }
    return !decreases && offsets[0] == 0 && offsets[count] == size - offsets_bytes
        && (count % 2 || offsets[count + 1] == 0);
}

PyDoc_STRVAR(read_batches_doc,
"read_batches(view, position, sequence, least, limit, seed, /)\n--\n\n"
"The run of batches of values alone that begins at `position`.\n\n"
"Each has at least `least` records, more than one, and all together no more than `limit`.");

static PyObject *
native_read_batches(PyObject *Py_UNUSED(module), PyObject *const *arguments, Py_ssize_t given)
{
    Py_buffer view;
    Py_ssize_t position, least, limit, space;
    uint64_t sequence;
    uint32_t seed;
    PyObject *found;
    Header header;

    if (given != 6) {
        PyErr_Format(PyExc_TypeError, "read_batches takes 6 arguments, not %zd", given);
        return NULL;
    }
    position = PyNumber_AsSsize_t(arguments[1], NULL);
    sequence = PyLong_AsUnsignedLongLong(arguments[2]);
    least = PyNumber_AsSsize_t(arguments[3], NULL);
    limit = PyNumber_AsSsize_t(arguments[4], NULL);
    seed = (uint32_t)PyLong_AsUnsignedLong(arguments[5]);
    if (PyErr_Occurred() || PyObject_GetBuffer(arguments[0], &view, PyBUF_SIMPLE) < 0) {
        return NULL;
    }
    found = PyList_New(0);
    while (found != NULL) {
        space = frame_at(&view, position, view.len, seed, &header);
        if (space == 0 || header.sequence != sequence || header.flags & ~(MORE | EXPLICIT)
            || header.count < 2 || header.count < least || header.count > limit
            || !holds_values((const uint8_t *)view.buf + position + HEADER_BYTES,
                             header.frame_bytes - HEADER_BYTES, header.count)) {
            break;
        }
        if (append_new(found, Py_BuildValue("nIIL", position, header.frame_bytes, header.count,
                                            (long long)header.timestamp_ns)) < 0) {
            Py_CLEAR(found);
        }
        position += space;
        sequence += header.count;
        limit -= header.count;
    }
    PyBuffer_Release(&view);
    return found;
}

PyDoc_STRVAR(fence_doc, "fence()\n--\n\n"
"A full memory barrier: what was stored before is seen before anything is loaded after.");

static PyObject *
native_fence(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(nothing))
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    Py_RETURN_NONE;
}

/* --- events ---------------------------------------------------------------------------------- */

#define SCANNED_BYTES 256

enum { EVENT_TYPE, EVENT_TS, EVENT_ID, EVENT_ACTOR, EVENT_FIELDS };

/* Whether a value is what the line of an event says as it is: text, a time, a name or none. */
static int
is_plain(PyObject *value, int field)
{
    if (field == EVENT_TS) {
        if (!PyLong_CheckExact(value)) {
            return 0;
        }
        (void)PyLong_AsUnsignedLongLong(value);
        if (PyErr_Occurred()) { /* negative, or too large */
            PyErr_Clear();
            return 0;
        }
        return 1;
    }
    return PyUnicode_CheckExact(value) || (field != EVENT_TYPE && value == Py_None);
}

static int
is_plain_event(PyObject *event, PyObject *members)
{
    for (int field = 0; field < EVENT_FIELDS; field++) {
        PyObject *member = PyTuple_GET_ITEM(members, field);
        PyObject *value = PyMemberDescr_Type.tp_descr_get(member, event, NULL);
        int plain;

        if (value == NULL) {
            PyErr_Clear();
            return 0;
        }
        plain = is_plain(value, field);
        Py_DECREF(value);
        if (!plain) {
            return 0;
        }
    }
    return 1;
}

static int
are_slots(PyObject *members)
{
    if (!PyTuple_CheckExact(members) || PyTuple_GET_SIZE(members) != EVENT_FIELDS) {
        return 0;
    }
    for (int field = 0; field < EVENT_FIELDS; field++) {
        if (!Py_IS_TYPE(PyTuple_GET_ITEM(members, field), &PyMemberDescr_Type)) {
            return 0;
        }
    }
    return 1;
}

PyDoc_STRVAR(plain_events_doc,
"plain_events(events, kind, members, /)\n--\n\n"
"True when a list holds nothing but events of exactly this kind, with plain fields.\n\n"
"`members` are the slots of type, ts, id and actor. None for anything else.");

static PyObject *
native_plain_events(PyObject *Py_UNUSED(module), PyObject *const *arguments, Py_ssize_t given)
{
    PyObject *events, *members;

    if (given != 3) {
        PyErr_Format(PyExc_TypeError, "plain_events takes 3 arguments, not %zd", given);
        return NULL;
    }
    events = arguments[0];
    members = arguments[2];
    if (!PyList_CheckExact(events) || !are_slots(members)) {
        Py_RETURN_NONE;
    }
    for (Py_ssize_t index = 0; index < PyList_GET_SIZE(events); index++) {
        PyObject *event = PyList_GET_ITEM(events, index);

        if ((PyObject *)Py_TYPE(event) != arguments[1] || !is_plain_event(event, members)) {
            Py_RETURN_NONE;
        }
    }
    Py_RETURN_TRUE;
}

PyDoc_STRVAR(holds_null_doc, "holds_null(data, /)\n--\n\n"
"Whether `null` stands anywhere in some bytes.");

static PyObject *
native_holds_null(PyObject *Py_UNUSED(module), PyObject *data)
{
    const uint8_t *at;
    Py_ssize_t places;

    if (!PyBytes_CheckExact(data)) {
        PyErr_SetString(PyExc_TypeError, "holds_null takes bytes");
        return NULL;
    }
    at = (const uint8_t *)PyBytes_AS_STRING(data);
    places = PyBytes_GET_SIZE(data) - 3;
    while (places > 0) { /* loops of one length are done many places at a time */
        uint8_t found = 0;
        if (places >= SCANNED_BYTES) {
            for (int i = 0; i < SCANNED_BYTES; i++) {
                found |= (at[i] == 'n') & (at[i + 1] == 'u') & (at[i + 2] == 'l')
                    & (at[i + 3] == 'l');
            }
        }
        else {
            for (Py_ssize_t i = 0; i < places; i++) {
                found |= memcmp(at + i, "null", 4) == 0;
            }
        }
        if (found) {
            Py_RETURN_TRUE;
        }
        at += SCANNED_BYTES;
        places -= SCANNED_BYTES;
    }
    Py_RETURN_FALSE;
}

/* --- the module ------------------------------------------------------------------------------- */

static PyMethodDef functions[] = {
    {"fence", native_fence, METH_NOARGS, fence_doc},
    {"crc32", (PyCFunction)(void (*)(void))native_crc32, METH_FASTCALL, crc32_doc},
    {"pack_values", (PyCFunction)(void (*)(void))native_pack_values, METH_FASTCALL,
     pack_values_doc},
    {"whole_frame", (PyCFunction)(void (*)(void))native_whole_frame, METH_FASTCALL,
     whole_frame_doc},
    {"read_batches", (PyCFunction)(void (*)(void))native_read_batches, METH_FASTCALL,
     read_batches_doc},
    {"read_singles", (PyCFunction)(void (*)(void))native_read_singles, METH_FASTCALL,
     read_singles_doc},
    {"plain_events", (PyCFunction)(void (*)(void))native_plain_events, METH_FASTCALL,
     plain_events_doc},
    {"holds_null", native_holds_null, METH_O, holds_null_doc},
    {NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "headwater._native",
    .m_doc = "The innermost loops, compiled; each has a twin in Python.",
    .m_size = -1,
    .m_methods = functions,
};

static PyObject *
known(const char *module, const char *name)
{
    PyObject *imported = PyImport_ImportModule(module), *found = NULL;
    if (imported != NULL) {
        found = PyObject_GetAttrString(imported, name);
        Py_DECREF(imported);
    }
    return found;
}

PyMODINIT_FUNC
PyInit__native(void)
{
    PyObject *module = PyModule_Create(&definition), *tip = PyType_FromSpec(&tip_spec);

    fill_table();
#ifdef HAVE_FOLDING
    folding = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
    wide_folding = folding && __builtin_cpu_supports("vpclmulqdq")
        && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq");
#endif
    time_ns = known("time", "time_ns");
    lock_type = known("_thread", "LockType");
    locked_name = PyUnicode_InternFromString("locked");
    if (!module || !tip || !time_ns || !lock_type || !locked_name
        || PyModule_AddObjectRef(module, "Tip", tip) < 0) {
        Py_XDECREF(module);
        Py_XDECREF(tip);
        return NULL;
    }
    Py_DECREF(tip);
    return module;
}
