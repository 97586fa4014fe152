# Entry code: from the loader's state (32-bit protected mode, no paging) to Rust for the first processor, from
# real mode to Rust for the others; and the interrupt handlers.
#
# The boot protocol is PVH (Xen, docs/misc/pvh.pandoc): an ELF note gives the entry point, and %ebx points to
# the start info.

    .section .note.pvh, "a", @note
    .balign 4
    .long 4, 8, 18                      # lengths of name and descriptor; XEN_ELFNOTE_PHYS32_ENTRY
    .asciz "Xen"
    .quad pvh_entry

    .section .text.start, "ax"
    .code32
    .globl pvh_entry
pvh_entry:
    cli
    cld
    movl    $first_stack_top, %esp
    movl    %ebx, %ebp
    # Identity-map the first 4 GiB with 2 MiB pages.
    xorl    %ecx, %ecx
1:  movl    %ecx, %eax
    shll    $21, %eax
    orl     $0x83, %eax                 # present, writable, large
    movl    %eax, page_directories(,%ecx,8)
    incl    %ecx
    cmpl    $2048, %ecx
    jne     1b
    xorl    %ecx, %ecx
1:  movl    %ecx, %eax
    shll    $12, %eax
    addl    $page_directories + 3, %eax # present, writable
    movl    %eax, page_pointers(,%ecx,8)
    incl    %ecx
    cmpl    $4, %ecx
    jne     1b
    movl    $page_pointers + 3, %eax
    movl    %eax, page_root
    movl    $first_core, %esi

# Enters 64-bit mode and calls the function at %esi with argument %ebp on stack %esp. Enables SSE registers, as
# the compiler uses them.
to_long_mode:
    movl    $page_root, %eax
    movl    %eax, %cr3
    movl    %cr4, %eax
    orl     $0x620, %eax                # PAE, OSFXSR, OSXMMEXCPT
    movl    %eax, %cr4
    movl    $0xc0000080, %ecx           # EFER: LME
    rdmsr
    orl     $0x100, %eax
    wrmsr
    movl    %cr0, %eax
    andl    $0x9ffffff3, %eax           # no CD, NW, TS, EM
    orl     $0x80010023, %eax           # PG, WP, NE, MP, PE
    movl    %eax, %cr0
    lgdtl   first_gdt_pointer
    ljmpl   $8, $long_mode
    .code64
long_mode:
    movl    $16, %eax
    movl    %eax, %ds
    movl    %eax, %es
    movl    %eax, %ss
    xorl    %eax, %eax
    movl    %eax, %fs
    movl    %eax, %gs
    movl    %esp, %esp
    movl    %ebp, %edi
    movl    %esi, %eax
    xorl    %ebp, %ebp
    callq   *%rax
    ud2

# Start of a secondary processor, in real mode, at the page below 1 MiB that this is copied to.
    .code16
    .globl core_trampoline, core_trampoline_end
core_trampoline:
    cli
    cld
    movw    %cs, %ax
    movw    %ax, %ds
    lgdtl   trampoline_gdt_pointer - core_trampoline
    movl    %cr0, %eax
    orl     $1, %eax
    movl    %eax, %cr0
    ljmpl   $24, $core_protected
trampoline_gdt_pointer:
    .word   first_gdt_end - first_gdt - 1
    .long   first_gdt
core_trampoline_end:

    .code32
core_protected:
    movw    $16, %ax
    movw    %ax, %ds
    movw    %ax, %es
    movw    %ax, %ss
    movl    core_stack, %esp
    movl    core_number, %ebp
    movl    $other_core, %esi
    jmp     to_long_mode

    .code64
# Exceptions end the program: Rust prints number, error code, address and CR2, on the interrupt stack. Handlers
# are 16 bytes apart.
    .globl exception_0, message_0, line, tick, spurious
    .balign 16
    .set    n, 0
exception_0:
    .rept 32
    .balign 16
    .if ((0x60227d00 >> n) & 1) == 0    # exceptions without an error code
    pushq   $0
    .endif
    pushq   $n
    jmp     exceptions
    .set    n, n + 1
    .endr
exceptions:
    popq    %rdi
    popq    %rsi
    movq    (%rsp), %rdx
    movq    %cr2, %rcx
    andq    $-16, %rsp
    cld
    callq   exception
    ud2

# Messages: increments the counts of the vector and of the core, then signals EOI. Runs no Rust, so only the
# registers used here are saved. Handlers are 16 bytes apart.
    .balign 16
    .set    n, 0
message_0:
    .rept 64
    .balign 16
    pushq   %rax
    lock incl MESSAGES + 4 * n(%rip)
    jmp     end_of_interrupt
    .set    n, n + 1
    .endr

# A level-triggered line, asserted until its device is serviced: masked before EOI. The task that has serviced
# the device unmasks it.
line:
    pushq   %rax
    pushq   %rdx
    movq    LINE + 8(%rip), %rax
    movl    LINE(%rip), %edx
    movl    %edx, (%rax)
    movl    LINE + 4(%rip), %edx
    movl    %edx, 16(%rax)
    lock incl LINE + 16(%rip)
    popq    %rdx
    jmp     end_of_interrupt

# Timer interrupt, which ends a halt.
tick:
    pushq   %rax
end_of_interrupt:
    incl    %gs:0
    movl    $0xfee000b0, %eax           # end-of-interrupt register of the local APIC
    movl    $0, (%rax)
    popq    %rax
spurious:
    iretq

    .section .data
    .balign 8
first_gdt:
    .quad 0
    .quad 0x00af9b000000ffff            # 08h: code, 64 bits
    .quad 0x00cf93000000ffff            # 10h: data
    .quad 0x00cf9b000000ffff            # 18h: code, 32 bits
first_gdt_end:
first_gdt_pointer:
    .word   first_gdt_end - first_gdt - 1
    .long   first_gdt
    .balign 4
    .globl core_stack, core_number
core_stack:
    .long 0
core_number:
    .long 0

    .section .bss
    .balign 4096
page_root:
    .skip 4096
page_pointers:
    .skip 4096
page_directories:
    .skip 4 * 4096
first_stack:
    .skip 256 * 1024
first_stack_top:
