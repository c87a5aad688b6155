/* Where the kernel and the loader begin the program (x86-64 psABI 3.4.1): argc lies at the stack pointer, argv
 * behind it, and rdx is what to call at the end. As gcc's Scrt1.o, but for constructors: compat.c. */
    .globl _start
    .type _start, @function
_start:
    .cfi_startproc
    .cfi_undefined rip /* The outermost frame. */
    endbr64
    xorl %ebp, %ebp
    movq %rdx, %r9
    popq %rsi
    movq %rsp, %rdx
    andq $-16, %rsp
    pushq %rax
    pushq %rsp
    leaq FsdpDestruct(%rip), %r8
    leaq FsdpConstruct(%rip), %rcx
    leaq main(%rip), %rdi
    call *__libc_start_main@GOTPCREL(%rip)
    hlt
    .cfi_endproc
    .size _start, . - _start
    .section .note.GNU-stack, "", @progbits
