/* Writes a page and reads it back, without a copy. */
#include <stdio.h>
#include <string.h>

#include "fnvme.h"

int main(void)
{
    fastpath *fp = fastpath_alloc(1 << 20);
    if (!fp) {
        fprintf(stderr, "alloc: %s\n", fastpath_error_text(fastpath_error()));
        return 1;
    }
    fp->block_size = 4096;
    strcpy(fp->dma_address, "hello, drive");
    if (fastpath_write(fp, fp->dma_address, 4096, FP_DIRECT | FP_BLOCKING) != 0)
        goto failed;

    memset(fp->dma_address, 0, 4096);
    if (fastpath_read(fp, fp->dma_address, 4096, FP_DIRECT) != 0 || fastpath_polling(fp) != 0)
        goto failed;
    puts(fp->dma_address);

    fastpath_free(fp);
    return fastpath_detach();

failed:
    fprintf(stderr, "%s\n", fastpath_error_text(fastpath_error()));
    return 1;
}
