# From what a loader leaves (protected mode, 32 bits, no paging) to Rust, for the first processor; from real
# mode to the same, for the others; and what interrupts enter.
#
# The loader's side is PVH (Xen, docs/misc/pvh.pandoc): an ELF note names the entry point, and %ebx points to
# what the loader says of the machine.

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
    # The first 4 GiB, each address as itself, in pages of 2 MiB.
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

# To 64 bits: %ebp is what the function at %esi is called with, %esp its stack. Vector registers are switched
# on, as the compiler uses them.
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

# Another processor begins here, in real mode, wherever below 1 MiB this was copied to.
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
# Exceptions end the program: who, with what, where. Rust is told on a stack of its own. Each begins 16 bytes
# behind the one before.
    .globl exception_0, message_0, line, tick, spurious
    .balign 16
    .set    n, 0
exception_0:
    .rept 32
    .balign 16
    .if ((0x60227d00 >> n) & 1) == 0    # those without an error code of their own
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

# A message: it is counted, for whoever waits for its vector and for its core, and ended. No Rust runs here, so
# nothing else has to be kept. Each begins 16 bytes behind the one before.
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

# A line whose level stays as long as its device wants something: it is masked before it is ended. Whoever has
# looked what there is lets it come again.
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

# The tick that ends a halt.
tick:
    pushq   %rax
end_of_interrupt:
    incl    %gs:0
    movl    $0xfee000b0, %eax           # the local controller's end-of-interrupt register
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
